"""Spawns whose caller goes away: they go on, and a repeat of the request_id joins them."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from spawnmesh.hook.v1.decision_pb2 import Allow, SpawnDecision
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.session.plugins import Plugin, plugged
from tests.support.session.remains import Remains
from tests.support.session.tables import swept

MADE = {"runs": 1, "queue": 1, "transcripts": 1, "entries": 3, "files": 1, "objects": 1}
DEADLINES_MS = range(1, 81, 4)


class SlowGate(Plugin):
    """Says when it is asked, and answers when it is told to."""

    def __init__(self) -> None:
        super().__init__(on_spawn=SpawnDecision(allow=Allow()), meanwhile=self._wait)
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def _wait(self, _session_id: str) -> None:
        self.asked.set()
        await self.go_on.wait()


async def all_sessions(mesh: Mesh) -> list[session_pb2.Session]:
    listed = await mesh.client(mesh.sessions.ListSessions, pb.ListSessionsRequest(page_size=200))
    return list(listed.sessions)


async def test_SpawnSession__a_repeat_after_a_short_deadline_gets_one_session(
    mesh: Mesh, remains: Remains
) -> None:
    requests = [
        pb.SpawnSessionRequest(request_id=uuid4().hex, task=f"{ms} ms", attachments=[attachment()])
        for ms in DEADLINES_MS
    ]
    heard: list[Status] = []
    for request, ms in zip(requests, DEADLINES_MS, strict=True):
        try:
            await mesh.client(mesh.sessions.SpawnSession, request, timeout=ms / 1000)
        except MeshError as error:
            heard.append(error.status)
    assert set(heard) == {Status.DEADLINE_EXCEEDED}
    answers = [(await mesh.client(mesh.sessions.SpawnSession, request)).session for request in requests]
    again = [(await mesh.client(mesh.sessions.SpawnSession, request)).session for request in requests]
    assert [session.session_id for session in again] == [session.session_id for session in answers]
    active = [one for one in await all_sessions(mesh) if one.state == session_pb2.SESSION_STATE_ACTIVE]
    assert {one.session_id for one in active} == {one.session_id for one in answers}
    count = len(requests)
    assert await remains.of(mesh.tenant) == {**{k: v * count for k, v in MADE.items()}, "objects": 1}


async def test_SpawnSession__goes_on_when_its_caller_goes_away(
    mesh: Mesh, peers: dict[str, str], remains: Remains
) -> None:
    gate, fields = SlowGate(), {"request_id": uuid4().hex, "attachments": [attachment()]}
    async with plugged(mesh, peers, gate):
        call = asyncio.create_task(mesh.spawn(**fields))
        await gate.asked.wait()
        call.cancel()
        await asyncio.wait([call])
        joining = asyncio.create_task(mesh.spawn(**fields))
        gate.go_on.set()
        joined = await joining
    assert (await mesh.get(joined.session_id)).state == session_pb2.SESSION_STATE_ACTIVE
    assert (await mesh.spawn(**fields)).session_id == joined.session_id
    assert len(await all_sessions(mesh)) == 1
    assert await remains.of(mesh.tenant) == MADE


async def test_SpawnSession__without_a_caller_ends_before_its_replica_does(
    open_mesh: OpenMesh, mesh: Mesh, peers: dict[str, str], remains: Remains
) -> None:
    gate = SlowGate()
    async with plugged(mesh, peers, gate):
        async with open_mesh() as replica:
            replica.tenant = mesh.tenant
            call = asyncio.create_task(replica.spawn(attachments=[attachment()]))
            await gate.asked.wait()
            call.cancel()
            await asyncio.wait([call])
            asyncio.get_running_loop().call_later(0.2, gate.go_on.set)
        [session] = await all_sessions(mesh)
    assert session.state == session_pb2.SESSION_STATE_ACTIVE
    assert await remains.of(mesh.tenant) == MADE


async def test_SpawnSession__that_an_ending_replica_cuts_off_is_undone_at_once(
    open_mesh: OpenMesh, mesh: Mesh, peers: dict[str, str]
) -> None:
    gate = SlowGate()
    async with plugged(mesh, peers, gate):
        async with open_mesh(drain_grace_seconds=0) as replica:
            replica.tenant = mesh.tenant
            call = asyncio.create_task(replica.spawn(attachments=[attachment()]))
            await gate.asked.wait()
            call.cancel()
            await asyncio.wait([call])
        [session] = await all_sessions(mesh)
    assert session.state == session_pb2.SESSION_STATE_SPAWN_FAILED


async def test_SpawnSession__after_an_outage_a_repeat_starts_over(
    open_mesh: OpenMesh, mesh: Mesh, remains: Remains, postgres: Any
) -> None:
    fields = {"request_id": uuid4().hex, "attachments": [attachment()]}
    async with open_mesh(elsewhere={"transcript": "127.0.0.1:1"}) as cut_off:
        cut_off.tenant = mesh.tenant
        with pytest.raises(MeshError) as caught:
            await cut_off.spawn(**fields)
    refused = caught.value
    assert (refused.reason, refused.status) == (Reason.SPAWN_FAILED, Status.UNAVAILABLE)
    assert refused.message.endswith("repeat the call with the same request_id")
    assert refused.retry_after_seconds == 1.0
    spawned = await mesh.spawn(**fields)
    assert (await mesh.spawn(**fields)).session_id == spawned.session_id
    states = sorted(session_pb2.SessionState.Name(one.state) for one in await all_sessions(mesh))
    assert states == ["SESSION_STATE_ACTIVE", "SESSION_STATE_SPAWN_FAILED"]
    await swept(mesh, postgres, mesh.tenant)
    assert await remains.of(mesh.tenant) == MADE
