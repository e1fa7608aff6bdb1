"""The followers and watchers of one tenant do not delay those of another."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_runtime.process import start_process
from spawnmesh_transcript.app import open_dependencies
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.follow_entries import follow_entries
from spawnmesh_transcript.rpc.watch_activities import watch_activities
from spawnmesh_transcript.settings import TranscriptSettings

from tests.support.held_database import HeldDatabase, settle
from tests.support.transcript.fixtures import Service, Session

CONNECTIONS = 8


@pytest.fixture
async def own(service: Service) -> AsyncIterator[Dependencies]:
    settings = TranscriptSettings(
        database_url=service.dsn.app, database_max_connections=CONNECTIONS, log_level="error"
    )
    async with start_process("transcript", settings) as process, AsyncExitStack() as stack:
        yield await open_dependencies(stack, process, settings)


def follow(session: Session, deps: Dependencies) -> AsyncGenerator[Any, None]:
    request = pb.FollowEntriesRequest(session_id=session.session_id)
    return follow_entries(request, Caller(CallerKind.CLIENT, "test", session.tenant_id), deps)


def watch(session: Session, deps: Dependencies) -> AsyncGenerator[Any, None]:
    request = activity_pb.WatchActivitiesRequest(session_id=session.session_id)
    return watch_activities(request, Caller(CallerKind.CLIENT, "test", session.tenant_id), deps)


async def first_of(messages: AsyncGenerator[Any, None]) -> object:
    try:
        return await anext(messages)
    finally:
        await messages.aclose()


@pytest.mark.parametrize("read", [follow, watch])
async def test_reads_of_one_tenants_watches_leave_room_for_another_tenant(
    service: Service, own: Dependencies, read: Callable[[Session, Dependencies], AsyncGenerator[Any, None]]
) -> None:
    busy, other = service.session(), service.session()
    for one in (busy, other):
        await one.create()
    database = HeldDatabase(own.database, busy.tenant_id)
    held: Any = database
    deps = replace(own, database=held)
    flood = [asyncio.create_task(first_of(read(busy, deps))) for _ in range(300)]
    await settle()
    assert database.held == CONNECTIONS // 4
    async with asyncio.timeout(60):
        assert await first_of(read(other, deps)) is not None
    assert not any(one.done() for one in flood)
    database.go_on.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*flood)
