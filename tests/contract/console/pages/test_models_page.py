"""`/models`: models, cooldowns that an operator of the mesh may end, and explained routes."""

import re

import pytest
from spawnmesh_client.client import Mesh, connect
from spawnmesh_client.resource_views import Agent
from spawnmesh_console.clients.model_router import clear_cooldown
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.failed import FailedRow, put_failed_calls
from tests.support.console.html import Page
from tests.support.console.visitors import ConsoleTenant, SignedIn, form_key, open_tenant, read
from tests.support.waiting import HOUR, eventually, time_left_in

FLAKY, AGENT = "scripted/flaky", "scripted/agent"
EXPLAINED = f"/models?explain={FLAKY}&fallbacks={AGENT}&only=1&tools=1"


@pytest.fixture
async def cooling(stack: Stack, mesh: Mesh) -> str:
    """Let a call of the tenant fail at a model that was not in cooldown, and is then."""
    async with connect(targets=stack.targets, token=stack.admin_token()) as operator:
        await clear_cooldown(operator, scope="MODEL", target=FLAKY, tenant_id="")
    await mesh.agents.put(Agent("patient", "Be patient.", models=(FLAKY, AGENT)))
    await (await mesh.spawn("Say hello.", agent="patient")).result(60)
    return FLAKY


def _cooldown_forms(page: Page) -> list[dict[str, str]]:
    return [form.fields for form in page.forms if form.action == "/models/cooldowns"]


async def test_models_are_listed_with_what_they_can_do(signed_in: SignedIn) -> None:
    page = await read(await signed_in(ClientRole.READER), "/models")
    assert f"{AGENT} primary can be called" in page.text
    assert "1 of 1 readable" in page.text
    (tables,) = [one["data-refresh"] for one in page.tags("div") if "data-refresh" in one]
    fragment = await read(await signed_in(ClientRole.READER), tables)
    assert f"{AGENT} primary can be called" in fragment.text
    assert not fragment.title, "a part of the page, and no page"


async def test_a_route_names_the_skipped_candidate_and_why(cooling: str, signed_in: SignedIn) -> None:
    reader = await signed_in(ClientRole.READER)
    page = await read(reader, EXPLAINED)
    # After failures of two tenants, the cooldown is for all of them.
    said = r"skipped It is in cooldown after failed calls( of this tenant)?: too many requests \(RATE_LIMIT\)"
    assert re.search(f"{cooling} {said}. The cooldown ends in", page.text)
    assert f"{AGENT} would be called It is called first." in page.text
    asked = next(form for form in page.forms if form.action.startswith("/models"))
    assert (asked.fields["explain"], asked.fields["fallbacks"]) == (cooling, AGENT)
    assert asked.fields["only"] == asked.fields["tools"] == "1"
    _, route = [one["data-refresh"] for one in page.tags("div") if "data-refresh" in one]
    assert "skipped It is in cooldown" in (await read(reader, route)).text


async def test_a_route_says_that_an_image_cannot_be_seen(signed_in: SignedIn) -> None:
    page = await read(await signed_in(), f"/models?explain={AGENT}&image=1")
    assert "It cannot see images: a note stands for the image." in page.text


async def test_a_model_that_is_not_configured_keeps_the_form(signed_in: SignedIn) -> None:
    page = await read(await signed_in(), "/models?explain=<b>no/model", status=400)
    assert [one for one in page.tags("p") if one.get("role") == "alert"]
    asked = next(form for form in page.forms if form.action.startswith("/models"))
    assert asked.fields["explain"] == "<b>no/model"
    assert not page.tags("b")


async def test_cooldowns_are_lanes_of_one_time_line(cooling: str, signed_in: SignedIn) -> None:
    reader = await signed_in(ClientRole.READER)
    page = await read(reader, "/models?part=state")
    assert re.search(rf"model {cooling} (for \S+ alone, )?too many requests: ends in ", page.text)
    labels = [one["aria-label"] for one in page.tags("svg") if one.get("role") == "img"]
    assert [
        one for one in labels if re.fullmatch(r"In cooldown from .*(now|ago); it ends in \d+ (s|min|h)", one)
    ]
    assert len([one for one in page.tags("rect") if one.get("class") == "coming"]) > 1, "and that of the key"
    assert [one for one in page.tags("text") if one["class"].endswith(" now")]
    assert page.text.index("Cooldowns") < page.text.index("Providers")


async def test_tenant_without_failed_calls_is_told_so(signed_in: SignedIn) -> None:
    page = await read(await signed_in(ClientRole.READER), "/models")
    assert "No call failed in the last 24 hours." in page.text


async def test_failed_calls_are_shown_by_model_and_reason_and_by_hour(
    tenant: ConsoleTenant, signed_in: SignedIn
) -> None:
    await time_left_in(HOUR)
    rows = [
        FailedRow(0, "acme/large", "TIMEOUT", 2, 1, 1),
        FailedRow(5, "acme/large", "TIMEOUT", 6, 6),
        FailedRow(5, "acme/<b>", "BILLING", 1200, 0, 4),
        FailedRow(24, "acme/old", "BILLING", 9000),
    ]
    await put_failed_calls(tenant, rows)
    page = await read(await signed_in(ClientRole.READER), "/models")
    said = "1,208 failed calls of models in 24 hours: after 7 another model was called, and 5 ended their request."
    assert said in page.text
    assert "acme/<b>: the account has no credit BILLING 1,200 0 4" in page.text
    assert "acme/large: no answer in time TIMEOUT 8 7 1" in page.text
    assert "acme/old" not in page.text
    (chart,) = [one["aria-label"] for one in page.tags("svg") if one.get("class") == "chart"]
    assert chart.startswith("A bar for each of 24 hours. The highest is 1,206 failed calls from ")
    assert "this hour has 2." in chart
    heights = [float(one["height"]) for one in page.tags("rect") if one.get("class") == "bar" and "y" in one]
    assert len(heights) == 24
    assert [one for one in heights if one] == [100.0, 1.0]
    widths = [one["width"] for one in page.tags("rect") if one.get("class") == "bar" and "y" not in one]
    assert widths == ["100.0", "1.0"]
    async with open_tenant(tenant.console) as other:
        outsider = await read(await signed_in(other.token()), "/models")
    assert "No call failed in the last 24 hours." in outsider.text


async def test_call_that_another_model_answers_is_listed(cooling: str, signed_in: SignedIn) -> None:
    reader = await signed_in(ClientRole.READER)

    async def is_listed() -> bool:
        page = await read(reader, "/models")
        return f"{cooling}: too many requests RATE_LIMIT 1 1 0" in page.text

    await eventually(is_listed)


async def test_an_operator_of_the_mesh_ends_a_cooldown(cooling: str, signed_in: SignedIn) -> None:
    admin = await signed_in(ClientRole.ADMIN)
    page = await read(admin, "/models")
    assert f"model {cooling} is not called" in page.text
    for fields in _cooldown_forms(page):
        answer = await admin.post("/models/cooldowns", data=fields)
        assert (answer.status_code, answer.headers["location"]) == (303, "/models")
    page = await read(await signed_in(ClientRole.READER), EXPLAINED)
    assert f"{cooling} would be called It is called first." in page.text
    assert f"model {cooling}" not in page.text


async def test_an_operator_of_the_tenant_cannot_end_a_cooldown(cooling: str, signed_in: SignedIn) -> None:
    operator = await signed_in(ClientRole.OPERATOR)
    page = await read(operator, EXPLAINED)
    assert f"model {cooling} is not called" in page.text
    assert not _cooldown_forms(page)
    fields = {"form_key": await form_key(operator), "scope": "MODEL", "target": cooling, "tenant_id": ""}
    assert (await operator.post("/models/cooldowns", data=fields)).status_code == 403
    assert f"model {cooling} is not called" in (await read(operator, "/models")).text


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"scope": "MODEL", "target": "no/model"}, 404),
        ({"scope": "PLANET", "target": FLAKY}, 400),
        ({}, 400),
    ],
)
async def test_a_cooldown_of_nothing_is_refused(
    fields: dict[str, str], status: int, signed_in: SignedIn
) -> None:
    admin = await signed_in(ClientRole.ADMIN)
    answer = await admin.post("/models/cooldowns", data={"form_key": await form_key(admin), **fields})
    assert answer.status_code == status
