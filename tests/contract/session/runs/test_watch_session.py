"""WatchSession: the events of a session."""

import asyncio
from typing import Any

import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer

from tests.support.serving import caller_at, client_tokens
from tests.support.session.calls import finalize
from tests.support.session.harness import Mesh


@pytest.fixture
async def transcript(peers: dict[str, str]) -> Any:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


async def test_WatchSession__every_event_once_and_in_order_from_any_cursor(
    mesh: Mesh, transcript: Peer
) -> None:
    session = await mesh.spawn()

    async def watch(after: int) -> list[session_pb2.SessionEvent]:
        request = pb.WatchSessionRequest(session_id=session.session_id, after_event=after)
        with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
            return [
                answer.session_event
                async for answer in mesh.peer.stream(mesh.sessions.WatchSession, request, timeout_seconds=60)
            ]

    live = asyncio.create_task(watch(0))
    await finalize(mesh, transcript, await mesh.claim(session.session_id))
    events = await live
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert events[0].kind == session_pb2.SESSION_EVENT_KIND_PROVISIONING
    assert [event.run_state for event in events if event.kind == session_pb2.SESSION_EVENT_KIND_RUN] == [
        session_pb2.RUN_STATE_QUEUED, session_pb2.RUN_STATE_RUNNING, session_pb2.RUN_STATE_SUCCEEDED,
    ]  # fmt: skip
    assert events[-1].kind == session_pb2.SESSION_EVENT_KIND_CLOSED
    assert await watch(2) == events[2:]
    assert await watch(events[-1].number) == []


async def test_WatchSession__ends_at_the_newest_event_of_a_session_that_is_open(mesh: Mesh) -> None:
    session = await mesh.spawn()

    async def read(after: int) -> list[session_pb2.SessionEvent]:
        request = pb.WatchSessionRequest(
            session_id=session.session_id, after_event=after, ends_at_newest=True
        )
        with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
            return [
                answer.session_event
                async for answer in mesh.peer.stream(mesh.sessions.WatchSession, request, timeout_seconds=60)
            ]

    events = await read(0)
    assert [event.number for event in events] == [1, 2]
    assert events[-1].run_state == session_pb2.RUN_STATE_QUEUED
    assert await read(1) == events[1:]
    assert await read(2) == []
