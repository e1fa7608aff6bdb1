"""WatchRunChanges: a runner learns at once that one of its runs was interrupted or killed."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.process import start_process
from spawnmesh_session.app import open_service

from tests.support.serving import caller_at, client_tokens, runner_tokens
from tests.support.session.calls import kill
from tests.support.session.harness import Mesh
from tests.support.session.interrupts import (
    held_run,
    interrupt,
    refusal_of,
    steer,
)


@asynccontextmanager
async def changes(mesh: Mesh, token: str) -> AsyncIterator[Any]:
    """Open the stream of the runner `test`; the first response has come."""
    request = run_pb.WatchRunChangesRequest(runner_id="test")
    with use_token(token):
        stream = mesh.peer.stream(mesh.runs.WatchRunChanges, request, timeout_seconds=60)
        await anext(stream)
        yield stream
        await stream.aclose()


async def test_WatchRunChanges__tells_of_interrupts_and_kills_and_of_no_other_tenant(mesh: Mesh) -> None:
    other = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await other.create_tenant()
    runner = client_tokens(mesh.keys).runner_token
    async with (
        changes(mesh, runner_tokens(mesh.keys).runner_token()) as of_all,
        changes(mesh, runner("harness", 600, tenants=[mesh.tenant])) as ours,
        changes(mesh, runner("harness", 600, tenants=[other.tenant])) as theirs,
    ):
        foreign = asyncio.create_task(anext(theirs))
        for stop in (interrupt, steer, kill):
            heard = [asyncio.create_task(anext(stream)) for stream in (of_all, ours)]
            held = await held_run(mesh)
            await stop(mesh, held.session.session_id)
            async with asyncio.timeout(60):
                await asyncio.gather(*heard)
        assert not foreign.done()
        foreign.cancel()
        await asyncio.gather(foreign, return_exceptions=True)


async def test_WatchRunChanges__many_interrupts_are_told_together(mesh: Mesh) -> None:
    """Each hint brings a heartbeat of every run of the runner, also of other tenants."""
    held, heard = await held_run(mesh), 0

    async def listen(stream: Any) -> None:
        nonlocal heard
        async for _ in stream:
            heard += 1

    async with changes(mesh, runner_tokens(mesh.keys).runner_token()) as stream:
        listening, began = asyncio.create_task(listen(stream)), time.monotonic()
        for _ in range(60):
            await steer(mesh, held.session.session_id)
        await asyncio.sleep(0.5)
        most = (time.monotonic() - began) / 0.2 + 2
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    assert 1 <= heard <= most


async def test_WatchRunChanges__ends_when_its_replica_drains(mesh: Mesh) -> None:
    async with (
        start_process("session", mesh.settings) as process,
        open_service(process, mesh.settings) as server,
    ):
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with caller_at(f"127.0.0.1:{port}", "session") as peer:
            there = Mesh(peer, mesh.keys, mesh.settings, mesh.tenant)
            async with changes(there, runner_tokens(mesh.keys).runner_token()) as stream:
                draining = asyncio.create_task(server.drain_and_stop(3600))
                assert [response async for response in stream] == []
            async with asyncio.timeout(60):
                await draining


async def test_WatchRunChanges__is_for_runners_alone(mesh: Mesh) -> None:
    request = run_pb.WatchRunChangesRequest(runner_id="test")
    with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
        stream = mesh.peer.stream(mesh.runs.WatchRunChanges, request, timeout_seconds=60)
        assert await refusal_of(anext(stream)) is Reason.CALLER_NOT_ALLOWED
