"""The number of plugins of a tenant is limited, and many gates cost a spawn no more than one."""

import asyncio
from typing import Any

from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.plugin_limits_pb2 import PluginLimits
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

from tests.support.hook.fixtures import (
    CLOSED,
    DEAD_ENDPOINT,
    ENDED,
    FINALIZE,
    MODEL,
    OPEN,
    SPAWN,
    HookMesh,
    Tenant,
    refused,
)
from tests.support.hook.scripted_plugin import ALLOW, deny

MOST_GATES = 64


async def never(_event: Any) -> Any:
    await asyncio.Event().wait()


async def test_UpdatePlugin__as_many_as_a_tenant_may_have_and_no_more(mesh: HookMesh, tenant: Tenant) -> None:
    await tenant.prepare(1, plugins=PluginLimits(max_plugin_count=3))
    replicas = [tenant, tenant.on(await mesh.replica())]
    registering = [
        replicas[number % 2].register(f"p-{number}", DEAD_ENDPOINT, (SPAWN, ENDED)[number % 2])
        for number in range(10)
    ]
    outcomes = await asyncio.gather(*registering, return_exceptions=True)
    failed = [outcome for outcome in outcomes if isinstance(outcome, MeshError)]
    assert [(error.reason, error.status, error.facts) for error in failed] == [
        (Reason.PLUGIN_COUNT_EXCEEDED, Status.RESOURCE_EXHAUSTED, {"limit": "3", "plugins": "3"})
    ] * 7
    first, *_ = names = await tenant.plugin_names()
    assert len(names) == 3
    await tenant.register(first, DEAD_ENDPOINT, ENDED)  # An existing plugin is replaced.
    await tenant.as_client("DeletePlugin", pb.DeletePluginRequest(name=first))
    await tenant.register("new", DEAD_ENDPOINT, ENDED)


async def test_UpdatePlugin__as_many_gates_as_a_tenant_may_have_and_no_more(
    mesh: HookMesh, tenant: Tenant
) -> None:
    await tenant.prepare(1, plugins=PluginLimits(max_gate_count=2))
    replicas = [tenant, tenant.on(await mesh.replica())]
    hooks = (SPAWN, FINALIZE, MODEL)
    registering = [
        replicas[number % 2].register(f"p-{number}", DEAD_ENDPOINT, hooks[number % 3], ENDED)
        for number in range(6)
    ]
    outcomes = await asyncio.gather(*registering, return_exceptions=True)
    failed = [outcome for outcome in outcomes if isinstance(outcome, MeshError)]
    assert [(error.reason, error.status, error.facts) for error in failed] == [
        (Reason.GATE_COUNT_EXCEEDED, Status.RESOURCE_EXHAUSTED, {"limit": "2", "gates": "2"})
    ] * 4
    gate, _ = await tenant.plugin_names()
    await tenant.as_client("PausePlugin", pb.PausePluginRequest(name=gate))
    await tenant.register("observer", DEAD_ENDPOINT, ENDED)
    with refused(Reason.GATE_COUNT_EXCEEDED):  # A paused gate counts.
        await tenant.register("observer", DEAD_ENDPOINT, SPAWN)
    await tenant.register(gate, DEAD_ENDPOINT, ENDED)
    await tenant.register("observer", DEAD_ENDPOINT, SPAWN)


async def test_UpdatePlugin__the_limits_of_the_newest_settings_hold(tenant: Tenant) -> None:
    await tenant.prepare(1)
    for number in range(16):
        await tenant.register(f"gate-{number}", DEAD_ENDPOINT, SPAWN)
    with refused(Reason.GATE_COUNT_EXCEEDED) as caught:
        await tenant.register("gate", DEAD_ENDPOINT, SPAWN)
    assert caught.value.facts == {"limit": "16", "gates": "16"}
    await tenant.prepare(2, plugins=PluginLimits(max_gate_count=17))
    await tenant.register("gate", DEAD_ENDPOINT, SPAWN)
    await tenant.prepare(3, plugins=PluginLimits(max_plugin_count=1))
    assert len(await tenant.plugin_names()) == 17
    await tenant.register("gate", DEAD_ENDPOINT, ENDED)
    with refused(Reason.PLUGIN_COUNT_EXCEEDED) as caught:
        await tenant.register("more", DEAD_ENDPOINT, ENDED)
    assert caught.value.facts == {"limit": "1", "plugins": "17"}


async def register_gates(tenant: Tenant, endpoint: str, count: int, **more: Any) -> None:
    await tenant.prepare(1, plugins=PluginLimits(max_plugin_count=256, max_gate_count=MOST_GATES))
    for number in range(count):
        await tenant.register(f"gate-{number:02}", endpoint, SPAWN, **more)


async def test_DispatchBeforeSpawn__all_gates_are_called_at_the_same_time(
    mesh: HookMesh, tenant: Tenant
) -> None:
    plugin = await mesh.plugin()
    all_called = asyncio.Event()

    async def allow_when_all_are_called(_event: Any) -> Any:
        if len(plugin.heard) == MOST_GATES:
            all_called.set()
        await all_called.wait()
        return ALLOW

    plugin.decide = allow_when_all_are_called
    await register_gates(tenant, plugin.endpoint, MOST_GATES)
    assert (await tenant.spawn(timeout_seconds=60.0)).decision == ALLOW
    assert all_called.is_set()


async def test_DispatchBeforeSpawn__many_dead_gates_take_the_time_of_one(
    mesh: HookMesh, tenant: Tenant
) -> None:
    """One after the other would take more than twice the deadline."""
    hanging = await mesh.plugin()
    hanging.decide = never
    last = await mesh.plugin(deny("no"))
    timeout = Duration(seconds=2)
    await register_gates(tenant, hanging.endpoint, MOST_GATES - 1, policy=OPEN, timeout=timeout)
    await tenant.register("last", last.endpoint, SPAWN, priority=-1, policy=OPEN)
    answer = await tenant.spawn(timeout_seconds=60.0)
    assert (answer.decision, answer.decided_by) == (deny("no"), "last")
    dead = [delivery for delivery in await tenant.deliveries(page_size=100) if delivery.plugin != "last"]
    assert {delivery.error for delivery in dead} == {"no answer within 2 s"}
    assert len(dead) == MOST_GATES - 1


async def test_DispatchBeforeSpawn__a_failure_above_a_denial_decides(mesh: HookMesh, tenant: Tenant) -> None:
    denies = await mesh.plugin(deny("no"))
    await tenant.register("denies", denies.endpoint, SPAWN)
    await tenant.register("dead", DEAD_ENDPOINT, SPAWN, priority=1, policy=CLOSED)
    with refused(Reason.PLUGIN_FAILED) as caught:
        await tenant.spawn()
    assert caught.value.facts["plugin"] == "dead"
    await tenant.register("dead", DEAD_ENDPOINT, SPAWN, priority=-1, policy=CLOSED)
    assert (await tenant.spawn()).decided_by == "denies"
