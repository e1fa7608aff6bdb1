"""`/plugins`: plugins with their newest calls, to pause and to resume."""

import pytest
from spawnmesh_client.client import Mesh
from spawnmesh_client.resource_views import FailurePolicy, Grant, HookKind, Plugin
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.html import Page
from tests.support.console.visitors import SignedIn, form_key, read
from tests.support.waiting import eventually

PAUSE, RESUME = "/plugins/gate/pause", "/plugins/gate/resume"
GATE = Plugin(
    "gate",
    "grpc://127.0.0.1:1",
    (HookKind.BEFORE_SPAWN, HookKind.AGENT_END),
    failure_policy=FailurePolicy.CLOSED,
    grants=(Grant.CONVERSATION_ACCESS,),
)


@pytest.fixture
async def gate(mesh: Mesh) -> Plugin:
    """Register a plugin that never answers."""
    return (await mesh.plugins.register(GATE, allow_unreachable=True))[0]


def _actions(page: Page) -> list[str]:
    return [
        form.action for form in page.forms if form.action.startswith("/plugins/") and form.method == "post"
    ]


async def test_plugins_are_listed_with_their_rights(gate: Plugin, signed_in: SignedIn) -> None:
    page = await read(await signed_in(ClientRole.READER), "/plugins")
    assert f"active gate {gate.endpoint} before_spawn, agent_end closed conversation_access" in page.text
    assert "/plugins/gate" in page.links


async def test_pausing_pauses_and_resuming_resumes(gate: Plugin, mesh: Mesh, signed_in: SignedIn) -> None:
    operator = await signed_in()
    page = await read(operator, "/plugins/gate")
    assert _actions(page) == [PAUSE]
    assert "closed: its failure is an objection" in page.text
    answer = await operator.post(PAUSE, data=page.form(PAUSE).fields)
    assert (answer.status_code, answer.headers["location"]) == (303, "/plugins/gate")
    assert (await mesh.plugins.get(gate.name)).paused
    await (await mesh.spawn("Say hello.")).result(60), "the gate would refuse it"

    page = await read(operator, "/plugins/gate")
    assert "paused" in page.text
    assert _actions(page) == [RESUME]
    assert (await operator.post(RESUME, data=page.form(RESUME).fields)).status_code == 303
    assert not (await mesh.plugins.get(gate.name)).paused


@pytest.mark.parametrize("role", [ClientRole.READER, ClientRole.USER])
async def test_other_roles_see_no_action_and_are_refused(
    role: ClientRole, gate: Plugin, mesh: Mesh, signed_in: SignedIn
) -> None:
    person = await signed_in(role)
    page = await read(person, "/plugins/gate")
    assert not _actions(page)
    key = await form_key(person)
    for path in (PAUSE, RESUME):
        answer = await person.post(path, data={"form_key": key})
        assert answer.status_code == 403
        assert "The mesh refused this" in answer.text
    assert not (await mesh.plugins.get(gate.name)).paused


async def test_the_newest_calls_are_shown_with_their_sessions(mesh: Mesh, signed_in: SignedIn) -> None:
    observer = Plugin("observer", GATE.endpoint, (HookKind.AGENT_END,))
    await mesh.plugins.register(observer, allow_unreachable=True)
    session = await mesh.spawn("Say hello.")
    await session.result(60)
    reader = await signed_in(ClientRole.READER)

    async def was_called() -> Page | None:
        page = await read(reader, "/plugins/observer")
        return page if "call failed agent_end" in page.text else None

    page = await eventually(was_called)
    assert "DEPENDENCY_UNAVAILABLE" in page.text
    assert f"/sessions/{session.session_id}" in page.links
    (rows,) = [one["data-refresh"] for one in page.tags("div") if "data-refresh" in one]
    assert "call failed agent_end" in (await read(reader, rows)).text
    failed = await read(reader, "/plugins/observer?decision=FAILED")
    assert f"/sessions/{session.session_id}" in failed.links
    assert "No call had this outcome." in (await read(reader, "/plugins/observer?decision=ALLOW")).text
    await read(reader, "/plugins/observer?page_token=made-up", status=400)


async def test_a_plugin_that_does_not_exist_is_not_found(signed_in: SignedIn) -> None:
    operator = await signed_in()
    await read(operator, "/plugins/none", status=404)
    answer = await operator.post("/plugins/none/pause", data={"form_key": await form_key(operator)})
    assert answer.status_code == 404
