"""A replica that is killed during a dispatch."""

import asyncio
import os
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from google.protobuf.duration_pb2 import Duration
from spawnmesh_core.errors import MeshError
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.peers import open_peer
from spawnmesh_runtime.process import start_process
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.hook.fixtures import FINALIZE, HookMesh, Tenant
from tests.support.hook.scripted_plugin import CONTINUE


async def test_a_repeat_takes_over_after_the_longest_time_of_the_plugins(
    mesh: HookMesh, tenant: Tenant, databases: dict[str, ServiceDsn], keys: Path
) -> None:
    plugin, called = await mesh.plugin(), asyncio.Event()

    async def hang(_event: Any) -> Any:
        called.set()
        await asyncio.Event().wait()

    plugin.decide = hang
    await tenant.register("gate", plugin.endpoint, FINALIZE, timeout=Duration(seconds=1))
    (port,) = free_ports(1)
    environment = {
        **os.environ,
        "HOOK_DATABASE_URL": databases["hook"].app,
        "HOOK_JWKS_FILE": str(keys / "jwks.json"),
        "HOOK_SIGNING_KEY_FILE": str(keys / "hook.pem"),
        "HOOK_ALLOW_PRIVATE_ENDPOINTS": "true",
        "HOOK_LISTEN": f"127.0.0.1:{port}",
        "HOOK_LOG_LEVEL": "error",
    }
    async with AsyncExitStack() as stack:
        replica = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "spawnmesh_hook", "serve", env=environment
        )
        settings = ProcessSettings(signing_key_file=keys / "session.pem", log_level="error")
        session = await stack.enter_async_context(start_process("session", settings))
        dying = tenant.on(await stack.enter_async_context(open_peer(session, "hook", f"127.0.0.1:{port}")))

        async def ask_the_dying_one() -> None:
            while not called.is_set():
                with suppress(MeshError):  # The replica is not serving yet, or is dead.
                    await dying.draft("k", timeout_seconds=659.0)
                await asyncio.sleep(0.1)

        asking = asyncio.create_task(ask_the_dying_one())
        async with asyncio.timeout(60):
            await called.wait()
        replica.kill()
        await replica.wait()
        await asking
    plugin.says(CONTINUE)
    assert (await tenant.draft("k", timeout_seconds=60.0)).decision == CONTINUE
