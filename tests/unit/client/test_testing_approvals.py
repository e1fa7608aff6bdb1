"""Approvals of the mesh in memory, as the tests of a program use them."""

from dataclasses import replace
from datetime import timedelta

import pytest
from spawnmesh_client import (
    Agent,
    Approval,
    ApprovalPolicy,
    ApprovalState,
    FailedPrecondition,
    InvalidRequest,
    Mesh,
    NotFound,
    Reason,
    RunFailed,
    RunState,
    Session,
    SessionMode,
    sync,
)
from spawnmesh_client.testing import FakeMesh
from spawnmesh_core.ids import IdKind, new_id


async def waiting(mesh: FakeMesh, *, mode: str = "") -> tuple[Session, Approval]:
    """Spawn a session, and return it with the approval for which its run waits."""
    session = await mesh.spawn("Work.", mode=mode)
    (approval,) = [one async for one in mesh.approvals.list(session_id=session.session_id)]
    return await session.refresh(), approval


async def run_states(session: Session) -> list[RunState | None]:
    return [event.run_state async for event in session.events() if event.run_state]


async def test_run_waits_for_the_decision_and_then_goes_on_with_the_script() -> None:
    mesh = FakeMesh()
    mesh.requests_approval("send_mail", {"to": "ada@example.com"}, reason="policy")
    mesh.answers("sent")
    session, approval = await waiting(mesh)
    assert session.latest_run is not None
    assert (session.latest_run.state, session.latest_run.approval_id) == (
        "WAITING_APPROVAL",
        approval.approval_id,
    )
    assert approval.tool_call is not None
    assert (approval.tool_call.tool_name, approval.reason) == ("send_mail", "policy")
    assert approval.tool_call.arguments == {"to": "ada@example.com"}
    decided = await mesh.approvals.approve(approval.approval_id, {"to": "bob@example.com"})
    assert (decided.state, decided.edited_arguments) == ("APPROVED", {"to": "bob@example.com"})
    result = await session.result()
    assert (result.text, result.run.approval_id) == ("sent", "")
    assert await run_states(session) == [
        *("QUEUED", "RUNNING", "WAITING_APPROVAL"), *("QUEUED", "RUNNING", "SUCCEEDED"),
    ]  # fmt: skip


async def test_answer_of_a_person_is_what_the_next_script_reads() -> None:
    mesh = FakeMesh()
    mesh.asks("Which?", "red", "blue")
    mesh.answers(lambda said: f"It is {said}.")
    session, approval = await waiting(mesh)
    assert approval.question is not None
    assert (approval.question.text, approval.question.choices) == ("Which?", ("red", "blue"))
    with pytest.raises(InvalidRequest, match="none of the choices: 'red', 'blue'"):
        await mesh.approvals.answer(approval.approval_id, "green")
    with pytest.raises(InvalidRequest, match="is a question"):
        await mesh.approvals.approve(approval.approval_id)
    assert (await mesh.approvals.answer(approval.approval_id, "blue")).text == "blue"
    assert (await session.result()).text == "It is blue."


async def test_decision_is_taken_once_and_a_repeat_changes_nothing() -> None:
    mesh = FakeMesh()
    mesh.requests_approval("send_mail", {})
    session, approval = await waiting(mesh)
    with pytest.raises(InvalidRequest, match="is a call of a tool"):
        await mesh.approvals.answer(approval.approval_id, "yes")
    denied = await mesh.approvals.deny(approval.approval_id, "not now")
    assert await mesh.approvals.deny(approval.approval_id, "not now") == denied
    await session.result()
    assert await mesh.approvals.deny(approval.approval_id, "not now") == denied
    for decision in (
        mesh.approvals.deny(approval.approval_id),
        mesh.approvals.approve(approval.approval_id),
    ):
        with pytest.raises(FailedPrecondition, match="is DENIED by fake already") as closed:
            await decision
        assert closed.value.reason is Reason.APPROVAL_CLOSED
        assert closed.value.facts == {
            "approval_id": approval.approval_id,
            "state": "DENIED",
            "decided_by": "fake",
        }


@pytest.mark.parametrize("policy", ["DENY", "FAIL"])
async def test_time_that_is_over_denies_the_call_or_fails_the_run(policy: str) -> None:
    mesh = FakeMesh()
    mesh.requests_approval("send_mail", {}, timeout=0, on_expiry=policy)
    session, approval = await waiting(mesh)
    if policy == "DENY":
        assert (await session.result()).text == "done"
    else:
        with pytest.raises(RunFailed) as failed:
            await session.result()
        assert (failed.value.reason, failed.value.state) == ("APPROVAL_EXPIRED", "FAILED")
    with pytest.raises(FailedPrecondition, match="is EXPIRED already"):
        await mesh.approvals.approve(approval.approval_id)


async def test_time_that_is_over_escalates_the_approval_once_and_then_denies_the_call() -> None:
    mesh = FakeMesh()
    mesh.requests_approval("send_mail", {}, timeout=0, on_expiry="ESCALATE")
    session, approval = await waiting(mesh)
    assert (await session.result()).text == "done"
    expired = await mesh.approvals.get(approval.approval_id)
    assert (expired.state, expired.on_expiry) == ("EXPIRED", "ESCALATE")
    assert expired.escalate_time == expired.create_time
    details = [event.detail async for event in session.events() if event.detail]
    assert details == [f"{approval.approval_id} was escalated"]


def pass_time(mesh: FakeMesh, approval: Approval, minutes: int) -> None:
    """Let the approval be as if it had been requested so much earlier."""
    (record,) = (record for record in mesh._fake.records.values() if record.pending is not None)
    (pending,) = (one for one in record.approvals if one.approval_id == approval.approval_id)
    for stamp in (pending.create_time, pending.expire_time):
        stamp.FromDatetime(stamp.ToDatetime() - timedelta(minutes=minutes))


async def test_escalated_approval_waits_for_as_long_again_and_can_be_decided() -> None:
    mesh = FakeMesh()
    mesh.asks("Which?", timeout=3600, on_expiry="ESCALATE")
    session, approval = await waiting(mesh)
    assert approval.escalate_time is None
    pass_time(mesh, approval, 90)
    escalated = await mesh.approvals.get(approval.approval_id)
    assert approval.expire_time is not None
    assert (escalated.state, escalated.expire_time) == (
        "PENDING",
        approval.expire_time - timedelta(minutes=30),
    )
    assert escalated.escalate_time == approval.expire_time - timedelta(minutes=90)
    assert await mesh.approvals.get(approval.approval_id) == escalated
    assert (await mesh.approvals.answer(approval.approval_id, "red")).state is ApprovalState.ANSWERED
    assert (await session.result()).text == "done"


async def test_approval_is_escalated_once() -> None:
    mesh = FakeMesh()
    mesh.asks("Which?", timeout=3600, on_expiry="ESCALATE")
    _, approval = await waiting(mesh)
    pass_time(mesh, approval, 90)
    escalated = await mesh.approvals.get(approval.approval_id)
    pass_time(mesh, approval, 60)
    expired = await mesh.approvals.get(approval.approval_id)
    assert (escalated.state, expired.state) == ("PENDING", "EXPIRED")
    assert expired.escalate_time == escalated.escalate_time


async def test_run_that_is_interrupted_or_killed_withdraws_its_approval() -> None:
    mesh = FakeMesh()
    for _ in range(3):
        mesh.requests_approval("send_mail", {})
    seen = []
    for end in ("interrupt", "kill", "delete"):
        session, approval = await waiting(mesh)
        await getattr(session, end)()
        if end == "delete":
            with pytest.raises(NotFound):
                await mesh.approvals.get(approval.approval_id)
        else:
            ended = await mesh.approvals.get(approval.approval_id)
            latest = (await session.refresh()).latest_run
            assert latest is not None
            seen += [(ended.state, ended.decided_by, latest.state, latest.approval_id)]
    assert seen == [("WITHDRAWN", "", "INTERRUPTED", ""), ("WITHDRAWN", "", "KILLED", "")]


async def test_message_waits_with_the_run_and_an_urgent_one_withdraws_the_approval() -> None:
    mesh = FakeMesh()
    mesh.requests_approval("send_mail", {})
    mesh.answers(lambda said: said.upper())
    session, approval = await waiting(mesh, mode=SessionMode.SESSION)
    run = await session.send("Also this.")
    assert (run.state, run.approval_id) == ("WAITING_APPROVAL", approval.approval_id)
    again = await session.interrupt("Rather that.")
    assert again is not None
    assert (again.run_id, again.state) == (run.run_id, "QUEUED")
    assert (await mesh.approvals.get(approval.approval_id)).state is ApprovalState.WITHDRAWN
    assert (await session.result()).text == "RATHER THAT."


async def test_lists_are_of_a_state_a_session_with_descendants_an_agent_and_a_tool() -> None:
    mesh = FakeMesh()
    await mesh.agents.put(Agent("clerk"))
    for tool in ("a", "b", "c"):
        mesh.requests_approval(tool, {})
    parent = await mesh.spawn("Work.")
    child = await mesh.spawn("Work.", parent=parent)
    await mesh.spawn("Work.", agent="clerk")
    first, *_ = [one async for one in mesh.approvals.list()]
    await mesh.approvals.approve(first.approval_id)

    async def listed(**conditions: str) -> str:
        found = [one.tool_call async for one in mesh.approvals.list(**conditions)]
        return "".join(call.tool_name for call in found if call is not None)

    assert await listed() == "abc"
    assert await listed(session_id=parent.session_id) == "ab"
    assert await listed(session_id=child.session_id) == "b"
    assert await listed(session_id=new_id(IdKind.SESSION)) == ""
    assert await listed(agent_id="clerk") == "c"
    assert await listed(tool_name="b") == "b"
    assert await listed(state="PENDING") == "bc"
    assert await listed(state="approved", tool_name="c") == ""


async def test_ids_and_arguments_are_checked() -> None:
    mesh = FakeMesh()
    with pytest.raises(InvalidRequest):
        await mesh.approvals.get("ses_1")
    with pytest.raises(NotFound):
        await mesh.approvals.get(new_id(IdKind.APPROVAL))
    with pytest.raises(ValueError, match="one of DENY, FAIL, ESCALATE"):
        mesh.asks("Which?", on_expiry="WAIT")


async def test_policy_of_an_agent_is_changed_alone() -> None:
    mesh: Mesh = FakeMesh()
    await mesh.agents.put(Agent("clerk", system_prompt="Be brief."))
    policy = ApprovalPolicy(tools=("send_*",), destructive_mcp_tools=True)
    changed = await mesh.agents.update(Agent("clerk", approval=policy), ["approval"])
    assert (changed.system_prompt, changed.approval) == ("Be brief.", policy)
    more = replace(policy, tools=("a",), destructive_mcp_tools=False)
    changed = await mesh.agents.update(Agent("clerk", approval=more), ["approval.tools"])
    assert changed.approval == replace(policy, tools=("a",))
    assert (await mesh.agents.update(Agent("clerk"), ["approval"])).approval is None


def test_blocking_methods_decide_too() -> None:
    fake = FakeMesh()
    fake.requests_approval("send_mail", {"to": "ada@example.com"})
    with sync.blocking(fake) as mesh:
        session = mesh.spawn("Work.")
        (approval,) = mesh.approvals.list(state="PENDING")
        assert mesh.approvals.deny(approval.approval_id, "no").text == "no"
        assert mesh.approvals.get(approval.approval_id).state is ApprovalState.DENIED
        assert session.result().text == "done"
