"""A router or a database that dies during a call: callers get a typed error, and runs continue."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_devstack.watchdog import Watchdog
from spawnmesh_runner.app import open_service
from spawnmesh_runner.settings import RunnerSettings
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.fixtures import World, user
from tests.support.model_router.process import RouterProcess, open_line, open_router_process
from tests.support.model_router.provider import RATE_LIMITED, Stall, chat, chunk, sse
from tests.support.runner.scripted_mesh import TENANT, ScriptedMesh
from tests.support.serving import served, shared_settings
from tests.support.waiting import eventually

HELLO = (chunk({"role": "assistant", "content": ""}), chunk({"content": "Hello"}))


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("two", sse(*chat("from two")))
    return world


@pytest.fixture
async def router(world: World, watchdog: Watchdog, fork_server: ForkServer) -> AsyncIterator[RouterProcess]:
    async with open_router_process(world, watchdog, fork_server) as running:
        yield running


async def saved(world: World) -> list[str]:
    """Return the cooldowns of this test's providers in the database."""
    async with await psycopg.AsyncConnection.connect(world.dsn.app) as connection:
        await connection.execute("set local spawnmesh.tenant = '*'")
        cursor = await connection.execute(
            "select target from cooldowns where target like %s", (f"{world.scripted}%",)
        )
        return [row[0] for row in await cursor.fetchall()]


async def test_Generate__killed_between_a_cooldown_and_its_row_the_next_one_finds_out_for_itself(
    world: World, watchdog: Watchdog, fork_server: ForkServer
) -> None:
    world.provider.on("one", RATE_LIMITED)
    chain = (world.ref("one"), world.ref("two"))
    async with (
        open_line(world.dsn.app) as (line, through),
        open_router_process(world, watchdog, fork_server, through) as router,
    ):
        assert (
            await router.caller.generate(world.ref("two"))
        ).text == "from two"  # It knows the tenant's policy.
        line.cut()
        assert (await router.caller.generate(*chain)).text == "from two", "an answer waits for no row"
        assert await router.caller.explain(*chain) == [("one", "COOLING"), ("two", "READY")]
        await router.kill()
        assert await saved(world) == []

        router.dsn = world.dsn.app
        await router.start()
        assert await router.caller.explain(*chain) == [("one", "READY"), ("two", "READY")]
        assert (await router.caller.generate(*chain)).text == "from two"

        async def is_saved() -> bool:
            return await saved(world) == [world.ref("one")]

        await eventually(is_saved)
    assert world.provider.asked("one") == 2


async def test_Generate__killed_within_an_answer_the_caller_hears_it_and_nobody_is_blamed(
    world: World, router: RouterProcess
) -> None:
    stall = Stall(HELLO)
    world.provider.on("one", stall, sse(*chat("whole")))
    calling = asyncio.create_task(router.caller.generate(world.ref("one"), world.ref("two")))
    await stall.reached.wait()
    await router.kill()
    async with asyncio.timeout(60):
        answered = await calling
        await stall.hung_up.wait()
    assert answered.refused.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert "completion" not in answered.kinds

    await router.start()
    assert (await router.caller.generate(world.ref("one"), world.ref("two"))).text == "whole"
    assert await saved(world) == []


async def test_runner__a_router_that_dies_within_an_answer_is_asked_again(
    world: World, router: RouterProcess, keys: Path, tmp_path: Path
) -> None:
    await _require_repeat(world, router, Stall(HELLO), keys, tmp_path / "begun")
    await _require_repeat(world, router, Stall(HELLO, begin=False), keys, tmp_path / "not begun")


async def _require_repeat(
    world: World, router: RouterProcess, stall: Stall, keys: Path, folder: Path
) -> None:
    """Kill the router while its provider stalls, and require that the run continues with another
    answer.
    """
    world.provider.on("one", stall, sse(*chat("Done.")))
    router.tenant = TENANT
    await router.caller.send_policy(1)
    mesh = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    mesh.store(entry_pb2.EntryBody(message=user("Say it.")))

    def offer(epoch: int) -> None:
        mesh.queue_run(epoch=epoch)
        claimed = mesh.queue.get_nowait()
        claimed.models[:] = claimed.agent.models[:] = [world.ref("one")]
        mesh.queue.put_nowait(claimed)

    def is_over() -> bool:
        if mesh.released:  # The router starts slowly: the runner has handed the run back.
            offer(mesh.released.pop() + 1)
        return bool(mesh.finalized or mesh.failed)

    offer(1)
    async with _running(mesh, router, keys, folder):
        await stall.reached.wait()
        await router.kill()
        await router.start()
        await eventually(is_over)
    assert mesh.failed is None, mesh.failed
    assert len(mesh.messages(message_pb2.ROLE_ASSISTANT)) == 1, "nothing of the broken answer was kept"


@asynccontextmanager
async def _running(
    mesh: ScriptedMesh, router: RouterProcess, keys: Path, folder: Path
) -> AsyncIterator[None]:
    """Run a runner with scripted peers, except for the router."""

    @asynccontextmanager
    async def open_peers(process: Process, settings: ProcessSettings) -> AsyncIterator[MeshServer]:
        server = build_server(process)
        mesh.add_to(server)
        yield server

    async with served("session", ProcessSettings(**shared_settings("session", keys)), open_peers) as target:
        peers: dict[str, Any] = {
            f"{name}_target": target for name in ("session", "transcript", "attachment_blob", "hook")
        }
        settings = RunnerSettings(
            **shared_settings("runner", keys),
            **peers,
            model_router_target=router.target,
            workspace_root=folder / "work",
            claim_wait_seconds=0.2,
        )
        (folder / "work").mkdir(parents=True)
        async with start_process("runner", settings) as process, open_service(process, settings):
            yield


async def test_Generate__a_database_that_falls_silent_holds_up_no_call_and_loses_no_cooldown(
    world: World,
) -> None:
    async with open_line(world.dsn.app) as (line, through):
        direct, world.dsn = world.dsn, ServiceDsn(through, world.dsn.owner)
        router = await world.router()
        await router.prepare(1, max_requests_per_minute=100, max_tokens_per_minute=100_000)
        assert (await router.generate(world.ref("two"))).text == "from two"
        world.provider.on("one", RATE_LIMITED)
        stall = Stall(HELLO)
        world.provider.on("two", stall, sse(*chat("from two")))

        broken = asyncio.create_task(router.generate(world.ref("two"), timeout=5))
        await stall.reached.wait()
        line.cut()
        # A call that waited for the database, at most half a minute, would exceed its deadline.
        answered = await router.generate(world.ref("one"), world.ref("two"), timeout=25)
        assert answered.text == "from two"
        answered = await router.generate(world.ref("one"), world.ref("two"), timeout=25)
        assert answered.verdicts[0][1] == "COOLING"
        assert (await broken).refused.reason is Reason.DEADLINE_EXCEEDED

        world.dsn = direct
        assert await saved(world) == []
        line.mend()

        async def is_saved() -> bool:
            return await saved(world) == [world.ref("one")]

        await eventually(is_saved)
