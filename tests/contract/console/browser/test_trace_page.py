"""The waterfall of a trace in a browser: at two widths, in two schemes, and with hostile names."""

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from spawnmesh_client.session import Session
from spawnmesh_core.spans import Span
from spawnmesh_devstack.stack import Stack

from tests.support.console.browsers import NARROW, TOO_WIDE, Windows, browser_package, violations
from tests.support.console.furnished import MARKUP, UNSEEN
from tests.support.console.running_console import RunningConsole, start_console
from tests.support.console.trace_backends import LoopbackTraces, open_trace_backend
from tests.support.console.trace_spans import named, traced
from tests.support.console.visitors import ConsoleTenant, open_tenant

RPC = "spawnmesh.transcript.v1.TranscriptService/AppendEntries"

# The places on the screen of each row's name, bar, and parts of the critical path, and of the links.
PLACES = """() => {
  const box = (one) => {
    const { left, right, top, bottom } = one.getBoundingClientRect();
    return [left, right, top, bottom];
  };
  return {
    rows: [...document.querySelectorAll(".waterfall tbody tr")].map((row) => ({
      name: row.querySelector(".what").textContent.trim(),
      what: box(row.querySelector(".what")),
      line: box(row.querySelector(".strip")),
      bar: box(row.querySelector(".bar")),
      path: [...row.querySelectorAll(".path")].map(box),
    })),
    links: [...document.querySelectorAll(".links line")].filter((one) => one.checkVisibility()).map(box),
  };
}"""


def expect(*of: object) -> Any:
    return browser_package("playwright.async_api").expect(*of)


@pytest.fixture(scope="module")
async def backend() -> AsyncIterator[LoopbackTraces]:
    async with open_trace_backend() as opened:
        yield opened


@pytest.fixture(scope="module")
async def traced_console(stack: Stack, backend: LoopbackTraces) -> RunningConsole:
    """Start a console that reads from the backend."""
    name = "console-with-traces"
    return await start_console(stack, stack.data_dir / name, name, {"TRACES_URL": backend.url})


def spans_of(tenant: ConsoleTenant) -> list[Span]:
    own = tenant.tenant_id
    return [
        named("spawn", "", own, end=100, name="spawnmesh.session.v1.SessionService/SpawnSession"),
        traced("call", "spawn", start=10, end=60, name=RPC, kind="client"),
        named("append", "call", own, start=30, end=40, name=RPC, service="transcript"),
        traced("step", "spawn", start=70, end=90, name="step", status="error", error__type="NOT_FOUND"),
    ]  # fmt: skip


@pytest.fixture
async def session(windows: Windows, traced_console: RunningConsole, tenant: ConsoleTenant) -> Session:
    """Return a session that waits for a harness. The windows are of the console with the backend."""
    windows.console = traced_console
    return await (await tenant.mesh.spawn("Say hello.", runtime="EXTERNAL")).refresh()


def address(session: Session) -> str:
    return f"/sessions/{session.session_id}/trace?spans=every"


async def test_bars_stand_on_one_axis_and_the_path_leads_through_them(
    windows: Windows, backend: LoopbackTraces, tenant: ConsoleTenant, session: Session
) -> None:
    backend.put(session.trace_id, spans_of(tenant))
    page = await windows.open(address(session), tenant.token())
    places = await page.evaluate(PLACES)
    assert [one["name"].split()[-1] for one in places["rows"]] == [
        "SpawnSession", "AppendEntries", "AppendEntries", "step",
    ]  # fmt: skip
    left, right = places["rows"][0]["line"][:2]

    def shares(box: list[float]) -> list[int]:
        return [round(100 * (x - left) / (right - left)) for x in box[:2]]

    assert [shares(one["bar"]) for one in places["rows"]] == [[0, 100], [10, 60], [30, 40], [70, 90]]
    assert [[shares(part) for part in one["path"]] for one in places["rows"]] == [
        [[0, 10], [60, 70], [90, 100]], [[10, 30], [40, 60]], [[30, 40]], [[70, 90]],
    ]  # fmt: skip
    for upper, lower in pairwise(places["rows"]):
        assert upper["line"][3] == pytest.approx(lower["line"][2], abs=0.6), (
            "rows touch: links go through them"
        )
    ends = [part for one in places["rows"] for part in one["path"]]
    for x, _, top, bottom in places["links"]:
        for y in (top, bottom):
            assert [
                part for part in ends if part[0] - 1 <= x <= part[1] + 1 and part[2] - 1 <= y <= part[3] + 1
            ], "a link leads from a part of the path to another one"
    assert len(places["links"]) == 6


@pytest.mark.parametrize("width", [1280, NARROW])
async def test_axe_finds_nothing_and_the_page_fits_the_window(
    width: int, windows: Windows, backend: LoopbackTraces, tenant: ConsoleTenant, session: Session
) -> None:
    long = [
        replace(one, name=f"{one.name} {'long' * 40}", service=f"{one.service}-{'wide' * 30}")
        for one in spans_of(tenant)
    ]
    deep = [
        traced(f"deep {n}", f"deep {n - 1}" if n else "spawn", end=50 - n, name=f"deep {n}")
        for n in range(20)
    ]
    backend.put(session.trace_id, [*long, *deep])
    page = await windows.open(address(session), tenant.token(), width=width)
    await expect(page.locator(".waterfall tbody tr")).to_have_count(24)
    assert await page.evaluate(TOO_WIDE) == []
    assert await violations(page) == []
    for row in (await page.evaluate(PLACES))["rows"]:
        assert row["bar"][0] >= row["line"][0] - 1
        assert row["bar"][1] <= row["line"][1] + 1
        assert row["line"][1] - row["line"][0] > 200, "there is room for bars"


async def test_the_picture_can_be_seen_in_the_dark_and_without_scripts(
    windows: Windows, backend: LoopbackTraces, tenant: ConsoleTenant, session: Session
) -> None:
    backend.put(session.trace_id, spans_of(tenant))
    found = {}
    for dark in (False, True):
        page = await windows.open(address(session), tenant.token(), dark=dark, scripts=False)
        await expect(page.locator(".waterfall tbody tr")).to_have_count(4)
        for name in ("path", "service-0", "service-2"):
            shape = page.locator(f".waterfall .{name}").first
            box = await shape.bounding_box()
            assert box is not None
            assert min(box["width"], box["height"]) >= 1
            found[name, dark] = await shape.evaluate("(one) => getComputedStyle(one).fill")
    for name in ("path", "service-0", "service-2"):
        assert found[name, False] != found[name, True]
    for dark in (False, True):
        assert len({found[name, dark] for name in ("path", "service-0", "service-2")}) == 3


async def test_hostile_names_of_spans_stay_text(
    windows: Windows, backend: LoopbackTraces, tenant: ConsoleTenant, session: Session
) -> None:
    hostile = f"{MARKUP} {UNSEEN}"
    backend.put(
        session.trace_id,
        [
            replace(
                one,
                name=f"{one.span_id} {hostile}",
                service=hostile,
                attributes={**one.attributes, "error.type": hostile, "gen_ai.request.model": hostile},
            )
            for one in spans_of(tenant)
        ],
    )
    page = await windows.open(address(session), tenant.token())
    await expect(page.locator(".waterfall tbody tr").first).to_contain_text(MARKUP)
    assert await page.locator("main img, main script, main a[href^=java]").count() == 0
    assert await page.evaluate("[...document.querySelectorAll('*')].filter((one) => one.onerror).length") == 0


async def test_the_trace_of_another_tenants_session_is_not_found(
    windows: Windows,
    backend: LoopbackTraces,
    tenant: ConsoleTenant,
    session: Session,
    traced_console: RunningConsole,
) -> None:
    backend.put(session.trace_id, spans_of(tenant))
    windows.expected += ["404 (Not Found)"]
    async with open_tenant(traced_console) as other:
        page = await windows.open(address(session), other.token())
        await expect(page.locator("h1")).to_have_text("The mesh refused this")
        await expect(page.locator("main")).not_to_contain_text("SpawnSession")
        assert await page.locator("svg.strip").count() == 0


async def test_the_page_is_reached_from_the_session_and_reloads(
    windows: Windows, backend: LoopbackTraces, tenant: ConsoleTenant, session: Session
) -> None:
    page = await windows.open(f"/sessions/{session.session_id}", tenant.token())
    await page.get_by_role("link", name=session.trace_id).click()
    await expect(page.locator("main")).to_contain_text("No span of this trace is there yet.")
    backend.put(session.trace_id, spans_of(tenant))
    await page.get_by_role("link", name="Reload").click()
    await expect(page.locator(".waterfall tbody tr")).to_have_count(3)
    await page.get_by_role("link", name="Show every span").click()
    await expect(page.locator(".waterfall tbody tr")).to_have_count(4)
