"""Limits of a session's inbox, and the messages that queue a run."""

import asyncio
from uuid import uuid4

import psycopg
import pytest
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

from tests.support.session.harness import Mesh
from tests.support.session.remains import Remains

MIB = 1024 * 1024


async def send(mesh: Mesh, session_id: str, text: str = "news", *, request_id: str = "") -> session_pb2.Run:
    request = pb.SendMessageRequest(session_id=session_id, request_id=request_id or uuid4().hex, text=text)
    run: session_pb2.Run = (await mesh.client(mesh.sessions.SendMessage, request)).run
    return run


async def refusal(mesh: Mesh, session_id: str, text: str = "news") -> MeshError:
    with pytest.raises(MeshError) as caught:
        await send(mesh, session_id, text)
    return caught.value


async def take_some(mesh: Mesh, held: run_pb.ClaimedRun) -> int:
    listed = (await mesh.run(held, mesh.runs.ListInbox, run_pb.ListInboxRequest())).messages
    keys = [message.key for message in listed]
    await mesh.run(
        held, mesh.runs.AcknowledgeInbox, run_pb.AcknowledgeInboxRequest(epoch=held.run.epoch, keys=keys)
    )
    return len(keys)


async def test_SendMessage__inbox_takes_so_many_bytes(mesh: Mesh) -> None:
    held = await mesh.claim((await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)).session_id)
    session_id = held.session.session_id
    for number in range(16):
        await send(mesh, session_id, "x" * MIB, request_id=f"m{number}")
    error = await refusal(mesh, session_id, "é")
    assert (error.reason, error.status) == (Reason.INBOX_FULL, Status.RESOURCE_EXHAUSTED)
    assert error.facts == {
        "waiting": "16", "limit": "1000", "waiting_bytes": str(16 * MIB), "size_bytes": "2", "limit_bytes": str(16 * MIB),
    }  # fmt: skip
    assert error.retry_after_seconds == 1.0
    await send(mesh, session_id, "x" * MIB, request_id="m3")  # It is there, and changes nothing.
    await take_some(mesh, held)
    await send(mesh, session_id, "é")


async def test_SendMessage__inbox_takes_so_many_messages_beside_what_children_say(
    mesh: Mesh, remains: Remains
) -> None:
    held = await mesh.claim((await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)).session_id)
    session_id = held.session.session_id
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as superuser:
        await superuser.execute(
            "insert into session.inbox_messages (tenant_id, session_id, key, text, child_session_id)"
            " select %s, %s, 'k' || n, 'news', case when n <= 50 then 'ses_child' else '' end from generate_series(1, 1049) n",
            (mesh.tenant, session_id),
        )
        await send(mesh, session_id)
        assert (await refusal(mesh, session_id)).reason is Reason.INBOX_FULL
        child = await mesh.claim((await mesh.spawn_as(held)).session_id)
        await mesh.run(
            child,
            mesh.runs.FailRun,
            run_pb.FailRunRequest(epoch=child.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR),
        )
        told = (
            "select count(*) from session.inbox_messages where tenant_id = %s and child_run_state = 'FAILED'"
        )
        [count] = await (await superuser.execute(told, (mesh.tenant,))).fetchone() or [0]
    assert count == 1  # Its parent hears all the same.


async def test_SendMessage__queues_no_run_that_a_spawn_could_not(mesh: Mesh) -> None:
    own = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await own.create_tenant(settings=TenantSettings(max_queued_run_count=2))
    idle: list[str] = []
    for _ in range(4):
        held = await own.claim((await own.spawn(mode=session_pb2.SESSION_MODE_SESSION)).session_id)
        await own.run(
            held,
            own.runs.FailRun,
            run_pb.FailRunRequest(epoch=held.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR),
        )
        idle.append(held.session.session_id)
    outcomes = await asyncio.gather(*(send(own, session_id) for session_id in idle), return_exceptions=True)
    refused = [error for error in outcomes if isinstance(error, MeshError)]
    assert [(error.reason, error.facts) for error in refused] == [
        (Reason.RUN_QUEUE_FULL, {"limit": "2", "waiting": "2"})
    ] * 2
    [waiting, *_] = [run for run in outcomes if isinstance(run, session_pb2.Run)]
    assert waiting.state == session_pb2.RUN_STATE_QUEUED
    reading = next(session_id for session_id, run in zip(idle, outcomes, strict=True) if run is waiting)
    assert (
        await send(own, reading, "more")
    ).run_id == waiting.run_id  # It is read by a run that waits already.


async def texts_of(mesh: Mesh, held: run_pb.ClaimedRun) -> list[str]:
    listed = (await mesh.run(held, mesh.runs.ListInbox, run_pb.ListInboxRequest())).messages
    return [message.text for message in listed]


async def send_as(mesh: Mesh, held: run_pb.ClaimedRun, session_id: str, text: str) -> None:
    """Send as the held run, under a request_id that others use too."""
    request = pb.SendMessageRequest(session_id=session_id, request_id="1", text=text)
    await mesh.run(held, mesh.sessions.SendMessage, request)


async def test_SendMessage__request_ids_are_those_of_clients_or_of_the_runs_of_one_session(
    mesh: Mesh,
) -> None:
    parent = await mesh.claim((await mesh.spawn()).session_id)
    child = await mesh.claim((await mesh.spawn_as(parent, mode=session_pb2.SESSION_MODE_SESSION)).session_id)
    session_id = child.session.session_id
    await send_as(mesh, parent, session_id, "Go on.")
    await send_as(mesh, child, session_id, "Go on.")
    await send(mesh, session_id, "Stop.", request_id="1")
    for _ in range(2):  # Repeats change nothing.
        await send_as(mesh, parent, session_id, "Go on.")
        await send(mesh, session_id, "Stop.", request_id="1")
    assert await texts_of(mesh, child) == ["Go on.", "Go on.", "Stop."]
    with pytest.raises(MeshError) as caught:
        await send_as(mesh, parent, session_id, "Stop.")
    assert caught.value.reason is Reason.REQUEST_ID_REUSED


async def test_SendMessage__a_clients_message_is_read_though_a_run_said_the_same_before(mesh: Mesh) -> None:
    held = await mesh.claim((await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)).session_id)
    session_id = held.session.session_id
    await send_as(mesh, held, session_id, "Stop.")
    await take_some(mesh, held)
    await mesh.run(
        held,
        mesh.runs.FailRun,
        run_pb.FailRunRequest(epoch=held.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR),
    )
    assert (await send(mesh, session_id, "Stop.", request_id="1")).state == session_pb2.RUN_STATE_QUEUED


async def test_SendMessage__a_run_that_takes_over_repeats_what_the_one_before_sent(mesh: Mesh) -> None:
    held = await mesh.claim((await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)).session_id)
    session_id = held.session.session_id
    await send_as(mesh, held, session_id, "Go on.")
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    later = await mesh.claim(session_id)
    await send_as(mesh, later, session_id, "Go on.")
    assert await texts_of(mesh, later) == ["Go on."]
