"""Clients of a tenant share one space of request ids; each session has one for its runs."""

from typing import Any
from uuid import uuid4

import pytest
from spawnmesh.attachment_blob.v1.attachment_pb2 import ENCODING_BASE64, ENCODING_UTF8, InlineAttachment
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.session.harness import Mesh


async def refusal(call: Any) -> Reason:
    with pytest.raises(MeshError) as caught:
        await call
    return Reason(caught.value.reason)


async def test_SpawnSession__run_neither_takes_a_clients_request_id_nor_finds_it_taken(mesh: Mesh) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    taken, free = uuid4().hex, uuid4().hex
    clients = await mesh.spawn(request_id=taken)
    runs = {(await mesh.spawn_as(held, request_id=one)).session_id for one in (taken, free)}
    clients_later = await mesh.spawn(request_id=free)
    assert len({clients.session_id, clients_later.session_id, *runs}) == 4
    assert (await mesh.spawn(request_id=taken)).session_id == clients.session_id
    assert (await mesh.spawn_as(held, request_id=taken)).session_id in runs
    assert await refusal(mesh.spawn(request_id=taken, task="other")) is Reason.REQUEST_ID_REUSED
    assert await refusal(mesh.spawn_as(held, request_id=taken, task="other")) is Reason.REQUEST_ID_REUSED


async def test_SpawnSession__runs_of_two_sessions_have_request_ids_of_their_own(mesh: Mesh) -> None:
    first, second = [await mesh.claim((await mesh.spawn()).session_id) for _ in range(2)]
    request_id = uuid4().hex
    children = [await mesh.spawn_as(held, request_id=request_id) for held in (first, second)]
    assert [child.parent_session_id for child in children] == [
        first.session.session_id,
        second.session.session_id,
    ]


async def test_SpawnSession__client_that_names_a_parent_is_a_client(mesh: Mesh) -> None:
    parent = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await mesh.claim(parent.session_id)
    request_id = uuid4().hex
    clients = await mesh.spawn(request_id=request_id, parent_session_id=parent.session_id)
    runs = await mesh.spawn_as(held, request_id=request_id)
    assert clients.session_id != runs.session_id
    assert await refusal(mesh.spawn(request_id=request_id)) is Reason.REQUEST_ID_REUSED


async def test_SpawnSession__the_same_bytes_in_another_form_are_the_same_payload(mesh: Mesh) -> None:
    request_id = uuid4().hex

    async def spawned(**file: Any) -> str:
        attached = InlineAttachment(name="a.txt", **file)
        return (await mesh.spawn(request_id=request_id, attachments=[attached])).session_id

    first = await spawned(content="hi!\n", encoding=ENCODING_UTF8)
    assert await spawned(data=b"hi!\n") == first
    assert await spawned(content="aGkh\nCg==", encoding=ENCODING_BASE64) == first
    for other in (
        {"data": b"hi!"},
        {"content": "aGkhCh==", "encoding": ENCODING_BASE64},
        {"content": "hi!\n"},
    ):
        assert await refusal(spawned(**other)) is Reason.REQUEST_ID_REUSED


async def test_SpawnSession__another_run_of_the_session_gets_what_the_one_before_spawned(mesh: Mesh) -> None:
    session_id = (await mesh.spawn()).session_id
    held = await mesh.claim(session_id)
    request_id = uuid4().hex
    child = await mesh.spawn_as(held, request_id=request_id)
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    again = await mesh.claim(session_id)
    assert (await mesh.spawn_as(again, request_id=request_id)).session_id == child.session_id


async def found(mesh: Mesh, request_id: str, held: run_pb.ClaimedRun | None = None) -> list[str]:
    """List the session with this request_id, as a client or as the run."""
    request = pb.ListSessionsRequest(request_id=request_id)
    listed = await (
        mesh.client(mesh.sessions.ListSessions, request)
        if held is None
        else mesh.run(held, mesh.sessions.ListSessions, request)
    )
    return [session.session_id for session in listed.sessions]


async def test_ListSessions__each_spawner_finds_its_own_request_ids(mesh: Mesh) -> None:
    first, second = [await mesh.claim((await mesh.spawn()).session_id) for _ in range(2)]
    request_id = uuid4().hex
    clients = await mesh.spawn(request_id=request_id)
    assert await found(mesh, request_id) == [clients.session_id]
    assert await found(mesh, request_id, first) == []
    child = await mesh.spawn_as(first, request_id=request_id)
    assert await found(mesh, request_id, first) == [child.session_id]
    assert await found(mesh, request_id, second) == []
    assert await found(mesh, request_id) == [clients.session_id]
    for more in ({"filter": "state = ACTIVE"}, {"order_by": "create_time"}):
        request = pb.ListSessionsRequest(request_id=request_id, **more)
        assert await refusal(mesh.client(mesh.sessions.ListSessions, request)) is Reason.INVALID_REQUEST
