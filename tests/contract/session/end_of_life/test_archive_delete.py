"""ArchiveSession and DeleteSession, alone, again, and while other things happen."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.hook.v1.decision_pb2 import Allow, SpawnDecision
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_runtime.impersonation import use_token

from tests.support.serving import caller_at, client_tokens
from tests.support.session.drafting import draft
from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.session.plugins import Plugin, plugged
from tests.support.session.remains import Remains
from tests.support.session.worker import work_once

NOWHERE = "127.0.0.1:1"


async def archive(mesh: Mesh, session_id: str) -> pb.ArchiveSessionResponse:
    request = pb.ArchiveSessionRequest(session_id=session_id)
    answer: pb.ArchiveSessionResponse = await mesh.client(mesh.sessions.ArchiveSession, request)
    return answer


async def delete(mesh: Mesh, session_id: str) -> tuple[int, int]:
    request = pb.DeleteSessionRequest(session_id=session_id)
    answer = await mesh.client(mesh.sessions.DeleteSession, request)
    return answer.deleted_session_count, answer.killed_run_count


async def kill(mesh: Mesh, session_id: str) -> None:
    await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session_id))


async def listed(mesh: Mesh, **fields: Any) -> set[str]:
    page = await mesh.client(mesh.sessions.ListSessions, pb.ListSessionsRequest(**fields))
    return {session.session_id for session in page.sessions}


async def reason_of(call: Any) -> Reason:
    with pytest.raises(MeshError) as caught:
        await call
    return caught.value.reason


async def test_ArchiveSession__ended_family_is_listed_only_when_asked_for(mesh: Mesh) -> None:
    root = await mesh.spawn()
    child = await mesh.spawn(parent_session_id=root.session_id)
    other = await mesh.spawn()
    await kill(mesh, root.session_id)
    answer = await archive(mesh, root.session_id)
    assert answer.archived_session_count == 2
    assert answer.session.HasField("archive_time")
    assert answer.session.state == session_pb2.SESSION_STATE_CLOSED
    assert await listed(mesh) == {other.session_id}
    assert await listed(mesh, include_archived=True) == {root.session_id, child.session_id, other.session_id}
    again = await archive(mesh, root.session_id)
    assert (again.archived_session_count, again.session) == (0, answer.session)


async def test_ArchiveSession__live_run_anywhere_in_the_family_archives_nobody(mesh: Mesh) -> None:
    root = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await mesh.claim(root.session_id)
    child = await mesh.spawn_as(held)
    failure = run_pb.FailRunRequest(epoch=held.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR, message="no")
    await mesh.run(held, mesh.runs.FailRun, failure)
    with pytest.raises(MeshError) as caught:
        await archive(mesh, root.session_id)
    assert (caught.value.reason, caught.value.status) == (Reason.RUN_STATE, Status.FAILED_PRECONDITION)
    assert caught.value.facts["session_id"] == child.session_id
    assert await listed(mesh) == {root.session_id, child.session_id}
    assert (await mesh.get(root.session_id)).state == session_pb2.SESSION_STATE_ACTIVE


async def test_ArchiveSession__being_spawned(mesh: Mesh, peers: dict[str, str]) -> None:
    refusals: list[Reason] = []

    async def meanwhile(session_id: str) -> None:
        refusals.append(await reason_of(archive(mesh, session_id)))

    async with plugged(mesh, peers, Plugin(meanwhile=meanwhile)):
        session = await mesh.spawn()
    assert refusals == [Reason.SPAWN_IN_PROGRESS]
    assert session.state == session_pb2.SESSION_STATE_ACTIVE


async def test_SendMessage__archived_open_session_takes_no_more(mesh: Mesh) -> None:
    session = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await mesh.claim(session.session_id)
    failure = run_pb.FailRunRequest(epoch=held.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR, message="no")
    await mesh.run(held, mesh.runs.FailRun, failure)
    await archive(mesh, session.session_id)
    request = pb.SendMessageRequest(session_id=session.session_id, request_id="m", text="hello")
    assert await reason_of(mesh.client(mesh.sessions.SendMessage, request)) is Reason.SESSION_CLOSED


async def test_DeleteSession__is_not_found_by_any_call_and_its_request_id_stays_taken(mesh: Mesh) -> None:
    fields = {"request_id": uuid4().hex, "task": "count", "attachments": [attachment()]}
    session = await mesh.spawn(**fields)
    assert await delete(mesh, session.session_id) == (1, 1)
    for call, request in (
        (mesh.sessions.GetSession, pb.GetSessionRequest(session_id=session.session_id)),
        (mesh.sessions.WaitSession, pb.WaitSessionRequest(session_id=session.session_id)),
        (mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session.session_id)),
        (mesh.sessions.ArchiveSession, pb.ArchiveSessionRequest(session_id=session.session_id)),
        (
            mesh.sessions.SendMessage,
            pb.SendMessageRequest(session_id=session.session_id, request_id="m", text="x"),
        ),
        (mesh.sessions.SpawnSession, pb.SpawnSessionRequest(**fields)),
        (
            mesh.sessions.SpawnSession,
            pb.SpawnSessionRequest(request_id="c", task="c", parent_session_id=session.session_id),
        ),
    ):
        assert await reason_of(mesh.client(call, request)) is Reason.NOT_FOUND, request
    reused = pb.SpawnSessionRequest(request_id=fields["request_id"], task="another")
    assert await reason_of(mesh.client(mesh.sessions.SpawnSession, reused)) is Reason.REQUEST_ID_REUSED
    assert await listed(mesh, include_archived=True) == set()
    assert await delete(mesh, session.session_id) == (0, 0)


async def test_DeleteSession__runner_loses_its_lease(mesh: Mesh, peers: dict[str, str]) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    async with caller_at(peers["transcript"], "transcript") as transcript:
        request = await draft(transcript, held, "42")
        await delete(mesh, held.session.session_id)
        heartbeat = run_pb.HeartbeatRunRequest(epoch=held.run.epoch)
        failure = run_pb.FailRunRequest(
            epoch=held.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR, message="no"
        )
        release = run_pb.ReleaseRunRequest(epoch=held.run.epoch)
        for call, asked in (
            (mesh.runs.HeartbeatRun, heartbeat),
            (mesh.runs.FinalizeRun, request),
            (mesh.runs.FailRun, failure),
            (mesh.runs.ReleaseRun, release),
            (mesh.sessions.SpawnSession, pb.SpawnSessionRequest(request_id="s", task="t")),
        ):
            expected = (
                Reason.NOT_FOUND if isinstance(asked, pb.SpawnSessionRequest) else Reason.RUN_LEASE_LOST
            )
            assert await reason_of(mesh.run(held, call, asked)) is expected
        assert await reason_of(draft(transcript, held, "43")) is Reason.NOT_FOUND


async def test_DeleteSession__parent_hears_that_its_child_was_killed_once(mesh: Mesh) -> None:
    parent = await mesh.claim((await mesh.spawn()).session_id)
    child = await mesh.spawn_as(parent)
    await asyncio.gather(*(delete(mesh, child.session_id) for _ in range(4)))
    [message] = (await mesh.run(parent, mesh.runs.ListInbox, run_pb.ListInboxRequest())).messages
    assert message.child_run_state == session_pb2.RUN_STATE_KILLED


async def test_DeleteSession__of_eight_calls_at_once_one_deletes(mesh: Mesh, remains: Remains) -> None:
    root = await mesh.spawn(attachments=[attachment()])
    await mesh.spawn(parent_session_id=root.session_id, attachments=[attachment()])
    answers = await asyncio.gather(*(delete(mesh, root.session_id) for _ in range(8)))
    assert sorted(answers)[-1] == (2, 2)
    assert sum(count for count, _ in answers) == 2
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert set((await remains.of(mesh.tenant)).values()) == {0}


async def test_DeleteSession__beside_children_that_are_being_spawned_leaves_none(
    mesh: Mesh, remains: Remains
) -> None:
    root = await mesh.spawn()

    async def spawn() -> None:
        try:
            await mesh.spawn(parent_session_id=root.session_id, attachments=[attachment()])
        except MeshError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise

    await asyncio.gather(*(spawn() for _ in range(4)), delete(mesh, root.session_id))
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert await listed(mesh, include_archived=True) == set()
    assert set((await remains.of(mesh.tenant)).values()) == {0}


async def test_DeleteSession__while_its_gate_thinks(
    mesh: Mesh, peers: dict[str, str], remains: Remains
) -> None:
    async def meanwhile(session_id: str) -> None:
        assert await delete(mesh, session_id) == (1, 0)

    fields = {"request_id": uuid4().hex, "task": "count", "attachments": [attachment()]}
    async with plugged(mesh, peers, Plugin(on_spawn=SpawnDecision(allow=Allow()), meanwhile=meanwhile)):
        assert await reason_of(mesh.spawn(**fields)) is Reason.NOT_FOUND
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert set((await remains.of(mesh.tenant)).values()) == {0}
    assert await reason_of(mesh.spawn(**fields)) is Reason.NOT_FOUND


@pytest.mark.parametrize("peer", ["attachment-blob", "transcript"])
async def test_DeleteSession__peer_that_is_down_is_seen_to_later(
    mesh: Mesh, open_mesh: OpenMesh, remains: Remains, peer: str
) -> None:
    session = await mesh.spawn(attachments=[attachment()], cleanup=session_pb2.CLEANUP_KEEP)
    async with open_mesh(elsewhere={peer: NOWHERE}) as broken:
        broken.tenant = mesh.tenant
        assert await delete(broken, session.session_id) == (1, 1)
    assert (await remains.of(mesh.tenant))["queue"] == 1
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert set((await remains.of(mesh.tenant)).values()) == {0}


async def test_WatchSession__ends_when_its_session_is_deleted(mesh: Mesh) -> None:
    session = await mesh.spawn()
    request = pb.WatchSessionRequest(session_id=session.session_id)
    with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
        events = mesh.peer.stream(mesh.sessions.WatchSession, request, timeout_seconds=60)
        await anext(events)
        await delete(mesh, session.session_id)
        with pytest.raises(MeshError) as caught:
            async for _ in events:
                pass
    assert caught.value.reason is Reason.NOT_FOUND


async def test_other_tenants_and_runs_can_neither_archive_nor_delete(mesh: Mesh) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    session_id = held.session.session_id
    stranger = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await stranger.create_tenant()
    for unknown in (session_id, new_id(IdKind.SESSION)):
        assert await reason_of(archive(stranger, unknown)) is Reason.NOT_FOUND
        assert await reason_of(delete(stranger, unknown)) is Reason.NOT_FOUND
    for call, request in (
        (mesh.sessions.ArchiveSession, pb.ArchiveSessionRequest(session_id=session_id)),
        (mesh.sessions.DeleteSession, pb.DeleteSessionRequest(session_id=session_id)),
    ):
        assert await reason_of(mesh.run(held, call, request)) is Reason.CALLER_NOT_ALLOWED
    await delete(mesh, session_id)
    assert await reason_of(delete(stranger, session_id)) is Reason.NOT_FOUND
    assert (await stranger.tenant_state()).tenant_id == stranger.tenant
