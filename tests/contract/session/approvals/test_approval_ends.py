"""Approvals that no person decides: their time is over, or their run ends or goes on before."""

from contextlib import aclosing
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import approval_pb2 as pb
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token

from tests.support.serving import client_tokens
from tests.support.session.approvals import (
    QUEUED,
    WAITING,
    approve,
    ask,
    call_key,
    get,
    let_expire,
    listed,
    take,
    waiting_run,
)
from tests.support.session.calls import send, take_all
from tests.support.session.harness import Mesh
from tests.support.session.interrupts import INTERRUPTED, OPEN, beat, interrupt, refusal_of, steer
from tests.support.session.tables import rows, superuser, sweeping

FAILED = session_pb2.RUN_STATE_FAILED


async def test_RequestApproval__after_its_time_the_call_is_denied_and_the_run_goes_on(
    mesh: Mesh, postgres: Any
) -> None:
    held, key, approval = await waiting_run(mesh)
    await let_expire(mesh, postgres, approval.approval_id)
    expired = await get(mesh, approval.approval_id)
    assert (expired.state, expired.decided_by) == (pb.APPROVAL_STATE_EXPIRED, "")
    assert await refusal_of(approve(mesh, approval.approval_id)) is Reason.APPROVAL_CLOSED
    again = await mesh.claim(held.session.session_id)
    assert (await take(mesh, again, key)).approval.state == pb.APPROVAL_STATE_EXPIRED


async def test_RequestApproval__after_its_time_the_run_fails_if_that_is_the_policy(
    mesh: Mesh, postgres: Any
) -> None:
    held, _, approval = await waiting_run(mesh, timeout=Duration(seconds=30), on_expiry=pb.EXPIRY_POLICY_FAIL)
    assert approval.expire_time.seconds - approval.create_time.seconds == 30
    await let_expire(mesh, postgres, approval.approval_id)
    run = (await mesh.get(held.session.session_id)).latest_run
    assert (run.state, run.error_reason) == (FAILED, reason_pb2.REASON_APPROVAL_EXPIRED)
    assert (await get(mesh, approval.approval_id)).state == pb.APPROVAL_STATE_EXPIRED


async def test_RequestApproval__a_decision_in_time_wins_over_a_sweep_that_took_the_run(
    mesh: Mesh, postgres: Any
) -> None:
    """The sweep takes the run as expired; the person decides before it has the lock."""
    held, _, approval = await waiting_run(mesh)
    async with superuser(postgres) as link:
        await link.execute(
            "update session.run_queue set expire_time = now() where run_id = %s", (held.run.run_id,)
        )
    await approve(mesh, approval.approval_id)
    async with sweeping(mesh) as sweep:
        await sweep.end_lost_runs()
    assert (await mesh.get(held.session.session_id)).latest_run.state == QUEUED
    assert (await get(mesh, approval.approval_id)).state == pb.APPROVAL_STATE_APPROVED


async def test_DecideApproval__is_refused_behind_the_end_of_the_time_before_any_sweep(
    mesh: Mesh, postgres: Any
) -> None:
    held, _, approval = await waiting_run(mesh)
    async with superuser(postgres) as link:
        await link.execute(
            "update session.approvals set expire_time = now() where approval_id = %s",
            (approval.approval_id,),
        )
    assert await refusal_of(approve(mesh, approval.approval_id)) is Reason.APPROVAL_CLOSED
    assert (await mesh.get(held.session.session_id)).latest_run.state == WAITING


async def test_InterruptRun__ends_a_waiting_run_at_once_and_the_session_goes_on(mesh: Mesh) -> None:
    held, _, approval = await waiting_run(mesh, spawn={"mode": OPEN})
    ended = await interrupt(mesh, held.session.session_id)
    assert (ended.state, ended.approval_id) == (INTERRUPTED, "")
    assert (await get(mesh, approval.approval_id)).state == pb.APPROVAL_STATE_WITHDRAWN
    assert (await send(mesh, held.session.session_id)).run_id != ended.run_id


async def test_InterruptRun__a_text_withdraws_the_approval_and_the_run_goes_on_with_it(mesh: Mesh) -> None:
    held, key, approval = await waiting_run(mesh, spawn={"mode": OPEN})
    session_id = held.session.session_id
    quiet = await send(mesh, session_id, "no hurry")
    assert (quiet.run_id, quiet.state) == (held.run.run_id, WAITING), "an ordinary message waits"
    steered = await steer(mesh, session_id, "never mind the transfer")
    assert (steered.run_id, steered.state) == (held.run.run_id, QUEUED)
    again = await mesh.claim(session_id)
    assert (await take(mesh, again, key)).approval.state == pb.APPROVAL_STATE_WITHDRAWN
    assert await beat(mesh, again) == run_pb.INTERRUPT_UNSPECIFIED, "it reads the message anyway"
    await take_all(mesh, again)
    assert (await get(mesh, approval.approval_id)).state == pb.APPROVAL_STATE_WITHDRAWN


async def test_RequestApproval__a_run_with_an_urgent_message_is_queued_at_once(mesh: Mesh) -> None:
    held = await mesh.claim((await mesh.spawn(mode=OPEN)).session_id)
    await steer(mesh, held.session.session_id)
    key = call_key()
    answer = await ask(mesh, held, key)
    assert (answer.approval.state, answer.run.state) == (pb.APPROVAL_STATE_WITHDRAWN, QUEUED)
    assert await ask(mesh, held, key) == answer, "a repeat finds the same"
    again = await mesh.claim(held.session.session_id)
    assert (await take(mesh, again, key)).approval.state == pb.APPROVAL_STATE_WITHDRAWN


async def test_RequestApproval__an_interrupted_run_ends_instead(mesh: Mesh) -> None:
    held = await mesh.claim((await mesh.spawn(mode=OPEN)).session_id)
    await interrupt(mesh, held.session.session_id)
    answer = await ask(mesh, held, call_key())
    assert answer.run.state == INTERRUPTED
    assert not answer.HasField("approval")
    assert await listed(mesh) == []


async def test_DeleteSession__deletes_its_approvals(mesh: Mesh, postgres: Any) -> None:
    held, _, approval = await waiting_run(mesh)
    request = session_pb.DeleteSessionRequest(session_id=held.session.session_id)
    await mesh.client(mesh.sessions.DeleteSession, request)
    assert await refusal_of(get(mesh, approval.approval_id)) is Reason.NOT_FOUND
    left = await rows(postgres, "select * from session.approvals where tenant_id = %s", mesh.tenant)
    assert left == []


async def test_RequestApproval__waiting_runs_take_no_place_of_the_queue(mesh: Mesh) -> None:
    settings = TenantSettings()
    settings.max_queued_run_count = settings.max_running_run_count = 1
    mesh.tenant = f"{mesh.tenant}-one"
    await mesh.create_tenant(settings=settings)
    await waiting_run(mesh)
    held = await mesh.claim((await mesh.spawn()).session_id)
    await mesh.spawn()  # The one that may wait for a runner, beside the one that runs.
    await beat(mesh, held)


@pytest.mark.parametrize("state", ["WAITING_APPROVAL", "RUN_STATE_WAITING_APPROVAL"])
async def test_ListSessions__finds_sessions_whose_run_waits(mesh: Mesh, state: str) -> None:
    held, _, _ = await waiting_run(mesh)
    await mesh.spawn()
    request = session_pb.ListSessionsRequest(filter=f"run_state = {state}")
    found = (await mesh.client(mesh.sessions.ListSessions, request)).sessions
    assert [one.session_id for one in found] == [held.session.session_id]
    assert found[0].latest_run.approval_id


async def test_WatchSession__tells_of_the_wait_and_of_the_decision(mesh: Mesh) -> None:
    held, _, approval = await waiting_run(mesh)
    await approve(mesh, approval.approval_id)
    request = session_pb.WatchSessionRequest(session_id=held.session.session_id)
    seen: list[tuple[int, str]] = []
    with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 600)):
        async with aclosing(
            mesh.peer.stream(mesh.sessions.WatchSession, request, timeout_seconds=60)
        ) as told:
            async for answer in told:
                seen.append((answer.session_event.run_state, answer.session_event.detail))
                if seen[-1] == (QUEUED, "the approval is APPROVED"):
                    break
    assert seen[-2] == (WAITING, approval.approval_id)
