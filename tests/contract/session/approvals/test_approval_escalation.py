"""Approvals that are escalated if no person decides in time: their runs wait for as long again."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import approval_pb2 as pb
from spawnmesh.session.v1 import approval_service_pb2 as service_pb
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token

from tests.support.serving import client_tokens
from tests.support.session.approvals import (
    QUEUED,
    WAITING,
    approve,
    ask,
    call_key,
    decide,
    deny,
    end_wait,
    get,
    let_expire,
    listed,
    take,
    waiting_run,
)
from tests.support.session.calls import kill
from tests.support.session.harness import Mesh
from tests.support.session.interrupts import OPEN, interrupt, refusal_of, steer
from tests.support.session.tables import rows, sweeping

ESCALATE = pb.EXPIRY_POLICY_ESCALATE
WAIT = timedelta(minutes=30)
QUESTION = pb.Question(text="Which account?", choices=["a", "b"])


async def escalated_run(
    mesh: Mesh, postgres: Any, **fields: Any
) -> tuple[run_pb.ClaimedRun, pb.CallKey, pb.Approval]:
    """Let a run of a new session wait for an approval that is escalated."""
    held, key, approval = await waiting_run(
        mesh, timeout=Duration(seconds=1800), on_expiry=ESCALATE, **fields
    )
    assert not approval.HasField("escalate_time")
    await let_expire(mesh, postgres, approval.approval_id)
    return held, key, await get(mesh, approval.approval_id)


async def sweep_once(mesh: Mesh) -> None:
    async with sweeping(mesh) as sweep:
        await sweep.end_lost_runs()


def second_wait(approval: pb.Approval) -> timedelta:
    return approval.expire_time.ToDatetime() - approval.escalate_time.ToDatetime()


@pytest.mark.parametrize("subject", [{}, {"question": QUESTION}], ids=["call", "question"])
async def test_RequestApproval__is_escalated_once_and_then_denied(
    mesh: Mesh, postgres: Any, subject: dict[str, Any]
) -> None:
    held, key, approval = await escalated_run(mesh, postgres, **subject)
    session_id, approval_id = held.session.session_id, approval.approval_id
    assert (approval.state, approval.decided_by) == (pb.APPROVAL_STATE_PENDING, "")
    assert not approval.HasField("decide_time")
    assert second_wait(approval) == WAIT
    assert await listed(mesh, state=pb.APPROVAL_STATE_PENDING, session_id=session_id) == [approval]
    assert (await ask(mesh, held, key, **subject)).approval == approval, "a repeat of the runner"
    run = (await mesh.get(session_id)).latest_run
    assert (run.state, run.approval_id) == (WAITING, approval_id)
    await sweep_once(mesh)
    assert await get(mesh, approval_id) == approval, "its second wait has just begun"
    await let_expire(mesh, postgres, approval_id)
    expired = await get(mesh, approval_id)
    assert (expired.state, expired.escalate_time) == (pb.APPROVAL_STATE_EXPIRED, approval.escalate_time)
    assert await refusal_of(deny(mesh, approval_id)) is Reason.APPROVAL_CLOSED
    again = await mesh.claim(session_id)
    assert (await take(mesh, again, key)).approval == expired


@pytest.mark.parametrize(
    ("subject", "decision", "state"),
    [
        ({}, {"approve": service_pb.Approve()}, pb.APPROVAL_STATE_APPROVED),
        ({}, {"deny": service_pb.DenyCall(reason="no")}, pb.APPROVAL_STATE_DENIED),
        ({"question": QUESTION}, {"answer": service_pb.Answer(text="b")}, pb.APPROVAL_STATE_ANSWERED),
    ],
    ids=["approve", "deny", "answer"],
)
async def test_DecideApproval__decides_after_the_escalation_as_before(
    mesh: Mesh, postgres: Any, subject: dict[str, Any], decision: dict[str, Any], state: int
) -> None:
    held, key, approval = await waiting_run(mesh, on_expiry=ESCALATE, **subject)
    query = "select deadline_time, wait_time, queue_time, attempt_count from session.runs where run_id = %s"
    [waiting] = await rows(postgres, query, held.run.run_id)
    await let_expire(mesh, postgres, approval.approval_id)
    approval = await get(mesh, approval.approval_id)
    assert approval.HasField("escalate_time")
    decided = await decide(mesh, approval.approval_id, **decision)
    assert (decided.approval.state, decided.run.state) == (state, QUEUED)
    assert decided.approval.escalate_time == approval.escalate_time
    assert (await decide(mesh, approval.approval_id, **decision)).approval == decided.approval, "a repeat"
    [queued] = await rows(postgres, query, held.run.run_id)
    waited = queued["queue_time"] - waiting["wait_time"]
    assert queued["deadline_time"] - waiting["deadline_time"] == waited, "both waits move the deadline"
    assert queued["attempt_count"] == waiting["attempt_count"]
    again = await mesh.claim(held.session.session_id)
    assert (await take(mesh, again, key)).approval.state == state


async def test_DecideApproval__wins_until_the_escalation_is_made(mesh: Mesh, postgres: Any) -> None:
    """The end of the first wait closes nothing: the approval is pending until a person decides."""
    held, _, approval = await waiting_run(mesh, on_expiry=ESCALATE)
    await end_wait(postgres, approval.approval_id)
    decided = (await approve(mesh, approval.approval_id)).approval
    await sweep_once(mesh)
    assert await get(mesh, approval.approval_id) == decided
    assert (decided.state, decided.HasField("escalate_time")) == (pb.APPROVAL_STATE_APPROVED, False)
    assert (await mesh.get(held.session.session_id)).latest_run.state == QUEUED


async def test_DecideApproval__is_refused_after_the_second_wait_before_any_sweep(
    mesh: Mesh, postgres: Any
) -> None:
    held, _, approval = await escalated_run(mesh, postgres)
    await end_wait(postgres, approval.approval_id)
    assert await refusal_of(approve(mesh, approval.approval_id)) is Reason.APPROVAL_CLOSED
    assert (await mesh.get(held.session.session_id)).latest_run.state == WAITING


async def interrupted(mesh: Mesh, session_id: str) -> None:
    await interrupt(mesh, session_id)


async def steered(mesh: Mesh, session_id: str) -> None:
    await steer(mesh, session_id)


async def killed(mesh: Mesh, session_id: str) -> None:
    await kill(mesh, session_id)


@pytest.mark.parametrize("end", [interrupted, steered, killed], ids=lambda end: end.__name__)
async def test_an_escalated_approval_is_withdrawn_with_its_wait(
    mesh: Mesh, postgres: Any, end: Callable[[Mesh, str], Awaitable[None]]
) -> None:
    held, _, approval = await escalated_run(mesh, postgres, spawn={"mode": OPEN})
    await end(mesh, held.session.session_id)
    withdrawn = await get(mesh, approval.approval_id)
    assert withdrawn.state == pb.APPROVAL_STATE_WITHDRAWN
    assert (await mesh.get(held.session.session_id)).latest_run.state != WAITING


async def test_sweeps_at_one_time_do_with_each_approval_as_its_policy_says(mesh: Mesh, postgres: Any) -> None:
    policies = [ESCALATE, pb.EXPIRY_POLICY_DENY, ESCALATE, pb.EXPIRY_POLICY_FAIL, ESCALATE]
    asked = [(await waiting_run(mesh, on_expiry=policy))[2] for policy in policies]
    _, _, later = await waiting_run(mesh, on_expiry=ESCALATE)
    for approval in asked:
        await end_wait(postgres, approval.approval_id)
    await asyncio.gather(*(sweep_once(mesh) for _ in range(3)))
    for policy, approval in zip(policies, asked, strict=True):
        found = await get(mesh, approval.approval_id)
        run = (await mesh.get(approval.session_id)).latest_run
        if policy == ESCALATE:
            assert (found.state, run.state) == (pb.APPROVAL_STATE_PENDING, WAITING)
            assert second_wait(found) == timedelta(hours=24)
        else:
            ends = session_pb2.RUN_STATE_FAILED if policy == pb.EXPIRY_POLICY_FAIL else QUEUED
            assert (found.state, run.state) == (pb.APPROVAL_STATE_EXPIRED, ends)
            assert not found.HasField("escalate_time")
        events = "select detail from session.session_events where session_id = %s and detail like %s"
        told = await rows(postgres, events, approval.session_id, "%was escalated")
        assert len(told) == (policy == ESCALATE)
    assert await get(mesh, later.approval_id) == later, "its time is not over"


async def test_UpdateAgent__the_policy_of_an_agent_escalates(mesh: Mesh, postgres: Any) -> None:
    policy = pb.ApprovalPolicy(tools=["*"], timeout=Duration(seconds=1800), on_expiry=ESCALATE)
    await mesh.put_agent(AgentProfile(agent_id="clerk", approval=policy))
    held = await mesh.claim((await mesh.spawn(agent_id="clerk")).session_id)
    assert held.agent.approval == policy
    given = held.agent.approval
    asked = await ask(mesh, held, call_key(), timeout=given.timeout, on_expiry=given.on_expiry)
    assert asked.approval.on_expiry == ESCALATE
    await let_expire(mesh, postgres, asked.approval.approval_id)
    assert second_wait(await get(mesh, asked.approval.approval_id)) == WAIT


async def test_WatchSession__tells_of_the_escalation(mesh: Mesh, postgres: Any) -> None:
    held, _, approval = await escalated_run(mesh, postgres)
    request = session_pb.WatchSessionRequest(session_id=held.session.session_id)
    seen: list[session_pb2.SessionEvent] = []
    with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 600)):
        async with aclosing(
            mesh.peer.stream(mesh.sessions.WatchSession, request, timeout_seconds=60)
        ) as told:
            async for answer in told:
                seen.append(answer.session_event)
                if seen[-1].detail == f"{approval.approval_id} was escalated":
                    break
    assert [event.run_state for event in seen[-2:]] == [WAITING, WAITING]
    assert (seen[-1].kind, seen[-1].run_id) == (session_pb2.SESSION_EVENT_KIND_RUN, held.run.run_id)
