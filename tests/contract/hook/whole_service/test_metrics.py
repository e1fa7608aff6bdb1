"""Metrics of plugin calls."""

import asyncio
from pathlib import Path
from urllib.request import urlopen

from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.hook.fixtures import DEAD_ENDPOINT, OPEN, SPAWN, open_mesh
from tests.support.hook.scripted_plugin import ALLOW


async def test_calls_of_plugins_are_measured_by_hook_and_decision(
    databases: dict[str, ServiceDsn], keys: Path
) -> None:
    (port,) = free_ports(1)
    async with open_mesh(databases["hook"], keys) as mesh:
        tenant = mesh.tenant(await mesh.replica(metrics_listen=f"127.0.0.1:{port}"))
        plugin = await mesh.plugin(ALLOW)
        await tenant.register("sound", plugin.endpoint, SPAWN)
        await tenant.register("dead", DEAD_ENDPOINT, SPAWN, policy=OPEN)
        for _ in range(2):
            await tenant.spawn()
        text = await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{port}/metrics").read().decode())
    metric = "spawnmesh_hook_delivery_duration_seconds_count"
    counted = metric + '{spawnmesh_hook_decision="%s",spawnmesh_hook_kind="before_spawn"}'
    assert f"{counted % 'allow'} 2.0" in text
    assert f"{counted % 'failed'} 2.0" in text
    assert tenant.tenant_id not in text
    assert "sound" not in text
