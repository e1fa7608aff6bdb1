"""Approvals through the client, against services in this process."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from spawnmesh.session.v1 import approval_pb2, session_pb2
from spawnmesh_client import (
    Agent,
    ApprovalPolicy,
    ApprovalState,
    FailedPrecondition,
    Mesh,
    MeshError,
    NotFound,
    Reason,
    RunNotDone,
    connect,
)
from spawnmesh_client.agents import _message
from spawnmesh_client.approval_views import ExpiryPolicy
from spawnmesh_client.approvals import approval_view
from spawnmesh_client.view_of import view_of
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.command.approvals import mail, question
from tests.support.command.fake_mesh import SESSION_ID, FakeMesh, mesh, session_in, unset

__all__ = ["mesh", "unset"]


@pytest.fixture
async def client(mesh: FakeMesh, keys: Path) -> AsyncIterator[Mesh]:
    token = TokenMinter("client", keys / "client.pem").client_token("acme", "test", 60)
    async with connect(targets=mesh.targets, token=token) as connected:
        yield connected


async def test_ListApprovals__come_from_every_page_with_all_conditions(mesh: FakeMesh, client: Mesh) -> None:
    mesh.approvals.known = [mail() for _ in range(5)]
    conditions = {"session_id": SESSION_ID, "agent_id": "clerk", "tool_name": "send_mail"}
    found = [one async for one in client.approvals.list(state=ApprovalState.PENDING, **conditions)]
    assert [one.approval_id for one in found] == [one.approval_id for one in mesh.approvals.known]
    assert len(mesh.approvals.requests) == 3
    for request in mesh.approvals.requests:
        assert request.state == approval_pb2.APPROVAL_STATE_PENDING
        assert {name: getattr(request, name) for name in conditions} == conditions
    assert [one async for one in client.approvals.list()] == found
    assert mesh.approvals.requests[-1].state == approval_pb2.APPROVAL_STATE_UNSPECIFIED
    with pytest.raises(ValueError, match="one of PENDING, APPROVED"):
        [one async for one in client.approvals.list(state="OPEN")]


async def test_GetApproval__is_a_view_with_parsed_arguments(mesh: FakeMesh, client: Mesh) -> None:
    call, asked = mail(reason="policy"), question("Which?", "red", "blue")
    call.edited_arguments_json = '{"to": "bob@example.com", "n": 12345678901234567890}'
    mesh.approvals.known = [call, asked]
    view = await client.approvals.get(call.approval_id)
    assert (view.state, view.on_expiry, view.reason) == ("PENDING", "DENY", "policy")
    assert view.create_time == call.create_time.ToDatetime(UTC)
    assert view.tool_call is not None
    assert view.tool_call.arguments == {"to": "ada@example.com"}
    assert view.tool_call.parameters == {"type": "object"}
    assert view.edited_arguments == {"to": "bob@example.com", "n": 12345678901234567890}
    assert (view.question, view.decide_time, view.begin_time) == (None, None, None)
    view = await client.approvals.get(asked.approval_id)
    assert view.question is not None
    assert (view.tool_call, view.question.text, view.question.choices) == (None, "Which?", ("red", "blue"))
    with pytest.raises(NotFound):
        await client.approvals.get(new_id(IdKind.APPROVAL))


@pytest.mark.parametrize("text", ["", "[1]", '{"a', '{"a": ' * 100_000])
def test_text_that_is_no_json_object_is_kept_beside_no_arguments(text: str) -> None:
    call = approval_view(mail(text)).tool_call
    assert call is not None
    assert (call.arguments, call.arguments_json) == (None, text)


async def test_DecideApproval__sends_each_decision(mesh: FakeMesh, client: Mesh) -> None:
    call, asked = mail(), question("Which?")
    mesh.approvals.known = [call, asked]
    approvals = client.approvals
    states = [
        (await approvals.approve(call.approval_id)).state,
        (await approvals.approve(call.approval_id, {"to": "Zoë"})).state,
        (await approvals.approve(call.approval_id, {})).state,
        (await approvals.deny(call.approval_id)).state,
        (await approvals.deny(call.approval_id, "too late")).state,
        (await approvals.answer(asked.approval_id, "red")).state,
    ]
    assert states == ["APPROVED"] * 3 + ["DENIED"] * 2 + ["ANSWERED"]
    requests = mesh.approvals.requests
    assert [one.approve.arguments_json for one in requests[:3]] == ["", '{"to": "Zoë"}', "{}"]
    assert [one.deny.reason for one in requests[3:5]] == ["", "too late"]
    assert requests[5].answer.text == "red"


@pytest.mark.parametrize("arguments", [{"n": float("nan")}, {"n": object()}, [1]])
async def test_arguments_that_are_no_json_object_are_not_sent(
    mesh: FakeMesh, client: Mesh, arguments: dict[str, object]
) -> None:
    with pytest.raises((ValueError, TypeError)):
        await client.approvals.approve(new_id(IdKind.APPROVAL), arguments)
    assert mesh.approvals.requests == []


async def test_DecideApproval__closed_one_is_a_failed_precondition(mesh: FakeMesh, client: Mesh) -> None:
    facts = {"state": "DENIED", "decided_by": "ada"}
    mesh.approvals.refusal = MeshError(Reason.APPROVAL_CLOSED, "denied by ada", facts=facts)
    with pytest.raises(FailedPrecondition) as closed:
        await client.approvals.approve(new_id(IdKind.APPROVAL))
    assert (closed.value.reason, closed.value.facts["decided_by"]) == (Reason.APPROVAL_CLOSED, "ada")


async def test_run_that_waits_is_not_done_and_names_its_approval(mesh: FakeMesh, client: Mesh) -> None:
    mesh.sessions.outcome = session_in(session_pb2.RUN_STATE_WAITING_APPROVAL, approval_id="apr_1")
    session = await client.spawn("Work.")
    with pytest.raises(RunNotDone, match="waits for a person to decide on apr_1") as late:
        await session.result(timeout=0)
    assert (late.value.state, late.value.approval_id) == ("WAITING_APPROVAL", "apr_1")
    seen = []
    await client.wire.wait(SESSION_ID, 0, seen.append)
    assert [one.latest_run.approval_id for one in seen] == ["apr_1"]


@pytest.mark.parametrize(
    "policy",
    [
        None,
        ApprovalPolicy(),
        ApprovalPolicy(("send_*", "mcp__mail__*"), True, timedelta(seconds=90), ExpiryPolicy.FAIL),
        ApprovalPolicy(on_expiry=ExpiryPolicy.ESCALATE),
    ],
)
def test_policy_of_an_agent_is_written_and_read(policy: ApprovalPolicy | None) -> None:
    agent = Agent("clerk", tools=("ask_user",), approval=policy)
    assert view_of(Agent, _message(agent)) == agent


def test_times_of_a_decision_are_in_utc() -> None:
    approval = mail()
    approval.decide_time.FromSeconds(1)
    approval.begin_time.FromSeconds(2)
    view = approval_view(approval)
    first = datetime.fromtimestamp(1, UTC)
    assert (view.decide_time, view.begin_time) == (first, first + timedelta(seconds=1))


def test_view_of_an_escalated_approval_has_the_time_of_the_escalation() -> None:
    approval = mail()
    assert approval_view(approval).escalate_time is None
    approval.on_expiry = approval_pb2.EXPIRY_POLICY_ESCALATE
    approval.escalate_time.FromSeconds(1)
    view = approval_view(approval)
    assert (view.on_expiry, view.escalate_time) == (ExpiryPolicy.ESCALATE, datetime.fromtimestamp(1, UTC))
