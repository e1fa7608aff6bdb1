"""The waiting and watching calls of one tenant do not delay those of another."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.wait_session import wait_session
from spawnmesh_session.rpc.watch_session import watch_session

from tests.support.held_database import HeldDatabase, settle
from tests.support.session.calls import another
from tests.support.session.harness import Mesh
from tests.support.session.worker import dependencies_of

Read = Callable[[Mesh, str, Dependencies], Awaitable[object]]


async def wait(mesh: Mesh, session_id: str, deps: Dependencies) -> object:
    request = pb.WaitSessionRequest(session_id=session_id)
    request.timeout.FromSeconds(0)
    return await wait_session(request, Caller(CallerKind.CLIENT, "test", mesh.tenant), deps)


async def watch(mesh: Mesh, session_id: str, deps: Dependencies) -> object:
    request = pb.WatchSessionRequest(session_id=session_id)
    events: AsyncGenerator[Any, None] = watch_session(
        request, Caller(CallerKind.CLIENT, "test", mesh.tenant), deps
    )
    try:
        return await anext(events)
    finally:
        await events.aclose()


@pytest.mark.parametrize("read", [wait, watch])
async def test_reads_of_one_tenants_watches_leave_room_for_another_tenant(mesh: Mesh, read: Read) -> None:
    busy, other = mesh, another(mesh)
    await other.create_tenant()
    sessions = {one.tenant: (await one.spawn()).session_id for one in (busy, other)}
    async with dependencies_of(mesh.settings) as own:
        database = HeldDatabase(own.database, busy.tenant)
        held: Any = database
        deps = replace(own, database=held, watch_source=replace(own.watch_source, database=held))
        flood = [asyncio.create_task(read(busy, sessions[busy.tenant], deps)) for _ in range(300)]
        await settle()
        assert database.held == mesh.settings.database_max_connections // 4
        async with asyncio.timeout(60):
            assert await read(other, sessions[other.tenant], deps)
        assert not any(one.done() for one in flood)
        database.go_on.set()
        async with asyncio.timeout(60):
            assert all(await asyncio.gather(*flood))
