"""`/spend`: today's spending against the budget, and the days, agents and models of a span."""

import re

import pytest
from spawnmesh_client.client import Mesh
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.html import Page
from tests.support.console.spent import SpentRow, put_budget, put_spending, today
from tests.support.console.visitors import ConsoleTenant, SignedIn, open_tenant, read
from tests.support.waiting import DAY, eventually, time_left_in

CENT = 10_000
ROWS = [
    SpentRow(0, "clerk", "acme/large", 250 * CENT, call_count=4),
    SpentRow(0, "", "acme/large", 50 * CENT),
    SpentRow(3, "clerk", "acme/small", 100 * CENT, call_count=2),
    SpentRow(20, "clerk", "acme/small", 600 * CENT),
    SpentRow(20, "*", "acme/small", 1),
    SpentRow(80, "old", "acme/large", 9000 * CENT),
]


@pytest.fixture
async def spent(tenant: ConsoleTenant) -> ConsoleTenant:
    """A tenant that has spent money, on a day that goes on for a while."""
    await time_left_in(DAY)
    await put_spending(tenant, ROWS)
    return tenant


def labels_of(page: Page) -> list[str]:
    return [one["aria-label"] for one in page.tags("svg") if one.get("role") == "img"]


async def test_tenant_without_calls_is_told_so(signed_in: SignedIn) -> None:
    page = await read(await signed_in(ClientRole.READER), "/spend")
    assert "No model was called in these 7 days." in page.text
    assert "The spending of this tenant has no limit." in page.text
    assert {"/spend", "/spend?days=7", "/spend?days=30", "/spend?days=90"} <= {*page.links}
    assert "Today 0.00 USD" in page.text
    assert not page.tags("table")


async def test_page_has_the_agents_models_and_days_of_a_week(
    spent: ConsoleTenant, signed_in: SignedIn
) -> None:
    page = await read(await signed_in(ClientRole.READER), "/spend")
    assert "Spent in 7 days 4.00 USD Model calls 7 Input tokens 7,000 Input from caches 40 %" in page.text
    assert "Output tokens 700" in page.text
    assert "clerk 3.50 87 % 6 6,000 600" in page.text
    assert "Direct calls 0.50 12 % 1 1,000 100" in page.text
    assert "acme/large 3.00 75 % 5 5,000 500" in page.text
    assert "acme/small 1.00 25 % 2 2,000 200" in page.text
    assert "old" not in page.text.split()
    assert f"{today().isoformat()} 3.00 5 5,000 500" in page.text
    (chart,) = labels_of(page)
    assert chart.startswith("A bar for each of 7 days. The highest is 3.00 USD on ")
    assert "today has 3.00 USD" in chart
    assert len([one for one in page.tags("rect") if one.get("class") == "bar" and "y" in one]) == 7
    assert "/sessions?agent=clerk" in page.links
    assert not [one for one in page.links if "explain" in one], "no model of the configuration was called"


@pytest.mark.parametrize(
    ("days", "total", "bars"),
    [("30", "10.00", 30), ("90", "100.00", 90), ("91", "4.00", 7), ("x", "4.00", 7)],
)
async def test_span_is_chosen_by_links(
    spent: ConsoleTenant, signed_in: SignedIn, days: str, total: str, bars: int
) -> None:
    page = await read(await signed_in(), f"/spend?days={days}")
    assert f"Spent in {bars} days {total}" in page.text
    assert len([one for one in page.tags("rect") if one.get("class") == "bar" and "y" in one]) == bars
    (chosen,) = [one["href"] for one in page.tags("a") if one.get("aria-current") and "days" in one["href"]]
    assert chosen == f"/spend?days={bars}"
    assert ("Further agents < 0.01 < 1 % 1" in page.text) == (bars > 7)


async def test_today_is_shown_against_its_budget(spent: ConsoleTenant, signed_in: SignedIn) -> None:
    await put_budget(spent, 1000 * CENT, spent_micros=300 * CENT, reserved_micros=25 * CENT)
    page = await read(await signed_in(), "/spend")
    assert "3.00 of 10.00 USD spent (30 %)" in page.text
    assert "6.75 USD is left, and 0.25 is reserved by calls in progress (hatched)." in page.text
    assert "used up" not in page.text
    bar, _ = labels_of(page)
    assert bar == "3.00 of 10.00 USD spent, 0.25 reserved"
    widths = [one["width"] for one in page.tags("rect") if one.get("class") == "used"]
    assert widths == ["30.0%"]
    (part,) = [one["data-refresh"] for one in page.tags("div") if "data-refresh" in one]
    fragment = await read(await signed_in(ClientRole.READER), part)
    assert "3.00 of 10.00 USD spent (30 %)" in fragment.text
    assert not fragment.title, "a part of the page, and no page"


async def test_today_without_a_budget_is_kept_up_to_date(spent: ConsoleTenant, signed_in: SignedIn) -> None:
    client = await signed_in()
    for address in ("/spend", "/spend?part=today"):
        assert "Today 3.00 USD" in (await read(client, address)).text


async def test_budget_that_is_used_up_says_what_follows(spent: ConsoleTenant, signed_in: SignedIn) -> None:
    await put_budget(spent, 100 * CENT, spent_micros=300 * CENT)
    page = await read(await signed_in(), "/spend")
    assert "3.00 of 1.00 USD spent (300 %) used up" in page.text
    assert "Calls of models are refused until the budget renews in " in page.text
    widths = [one["width"] for one in page.tags("rect") if one.get("class") == "used"]
    assert widths == ["100.0%"]


async def test_calls_without_prices_are_shown_by_their_tokens(
    tenant: ConsoleTenant, signed_in: SignedIn
) -> None:
    await put_spending(tenant, [SpentRow(0, "ann", "own/one", 0, 3), SpentRow(1, "ben", "own/one", 0)])
    page = await read(await signed_in(ClientRole.READER), "/spend")
    assert "have no prices in the configuration" in page.text
    assert "USD" not in page.text
    assert "ann 75 % 3 3,000 300 ben 25 % 1 1,000 100" in page.text
    assert "Today 3,300 tokens" in page.text
    assert "The highest bar is 3,300 tokens" in page.text


async def test_run_is_the_spending_of_its_agent(mesh: Mesh, signed_in: SignedIn) -> None:
    await (await mesh.spawn("Say hello.")).result(60)
    client = await signed_in(ClientRole.READER)

    async def is_listed() -> bool:
        page = await read(client, "/spend")
        rows = r"default [\d.]+ 100 % 1 .* scripted/agent [\d.]+ 100 % 1 "
        return bool(re.search(rows, page.text)) and "/models?explain=scripted%2Fagent#why" in page.links

    await eventually(is_listed)


async def test_many_agents_have_one_row_for_the_smallest(spent: ConsoleTenant, signed_in: SignedIn) -> None:
    await put_spending(spent, [SpentRow(1, f"agent-{number}", "acme/small", CENT) for number in range(60)])
    page = await read(await signed_in(), "/spend")
    assert "38 more agents 0.38" in page.text
    assert len([one for one in page.links if one.startswith("/sessions?agent=")]) == 23


async def test_tenant_sees_nothing_of_the_spending_of_another(
    spent: ConsoleTenant, signed_in: SignedIn
) -> None:
    async with open_tenant(spent.console) as other:
        outsider = await signed_in(other.token())
        page = await read(outsider, "/spend?days=90")
    assert "No model was called in these 90 days." in page.text
    assert "acme/large" not in page.text
