"""A plugin that was asked about a spawn hears how it ended, whatever happened to it meanwhile."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1 import observed_pb2 as observed
from spawnmesh.hook.v1.end_outcome_pb2 import END_OUTCOME_SUCCEEDED
from spawnmesh_hook.jobs.event_delivery import EventDelivery
from spawnmesh_hook.operations.plugin_cache import PluginCache
from spawnmesh_hook.store.bundled_plugins import BundledPlugins
from spawnmesh_hook.store.outbox import DELIVER_EVENT
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.fixtures import ENDED, OPEN, SPAWN, HookMesh, Tenant
from tests.support.hook.scripted_plugin import ALLOW, ScriptedPlugin

BOTH = (SPAWN, ENDED, events.HOOK_KIND_AGENT_END)


@pytest.fixture
async def gate(mesh: HookMesh, tenant: Tenant) -> ScriptedPlugin:
    """A plugin that has allowed the spawn of ses_1, and observes ends."""
    plugin = await mesh.plugin(ALLOW)
    await tenant.register("gate", plugin.endpoint, *BOTH)
    await tenant.spawn()
    plugin.heard.clear()
    return plugin


async def pause(tenant: Tenant) -> None:
    await tenant.as_client("PausePlugin", pb.PausePluginRequest(name="gate"))


async def resume(tenant: Tenant) -> None:
    await tenant.as_client("ResumePlugin", pb.ResumePluginRequest(name="gate"))


async def end(tenant: Tenant) -> None:
    """Publish both events of an end, as the session service does."""
    await tenant.ended()
    await tenant.publish(
        observed.ObservedEvent(
            event_key="agent_end:1",
            session_id="ses_1",
            run_id="run_1",
            agent_end=observed.AgentEndEvent(outcome=END_OUTCOME_SUCCEEDED),
        )
    )


def heard_by(plugin: ScriptedPlugin) -> list[tuple[str, str]]:
    return sorted((event.session_id, event.WhichOneof("event")) for event in plugin.heard)


AS_PUBLISHED = [("ses_1", "agent_end"), ("ses_1", "subagent_ended")]
ENDED_ONLY = [("ses_1", "subagent_ended")]


@pytest.mark.parametrize(
    "steps", [(pause, end), (end, pause)], ids=["paused before the end", "paused before the delivery"]
)
async def test_a_plugin_that_was_paused_hears_the_end_when_it_is_resumed(
    gate: ScriptedPlugin,
    tenant: Tenant,
    deliveries: JobWorker,
    steps: tuple[Callable[[Tenant], Awaitable[None]], ...],
) -> None:
    for step in steps:
        await step(tenant)
    for _ in range(2):
        await deliveries.run_due()
    assert gate.heard == []
    await resume(tenant)
    await deliveries.run_due()
    assert heard_by(gate) == ENDED_ONLY
    [told] = await tenant.deliveries(decision="told")
    assert told.attempt == 1
    await resume(tenant)
    await deliveries.run_due()
    assert heard_by(gate) == ENDED_ONLY


async def test_an_end_is_not_held_for_a_plugin_that_was_resumed_meanwhile(
    gate: ScriptedPlugin, tenant: Tenant, deliveries: JobWorker
) -> None:
    kind = deliveries._kinds[DELIVER_EVENT]
    delivery = cast(EventDelivery, kind.handler.__self__)  # type: ignore[attr-defined]
    stale = PluginCache(delivery.database, BundledPlugins([]), lambda: 0.0)
    await pause(tenant)
    assert [plugin.paused for plugin in await stale.all(tenant.tenant_id)] == [True]
    await resume(tenant)
    await tenant.ended()
    deliveries._kinds = {kind.name: replace(delivery, plugin_cache=stale).kind(4)}
    await deliveries.run_due()
    assert heard_by(gate) == ENDED_ONLY


async def test_a_plugin_that_is_replaced_hears_the_end_at_its_new_endpoint(
    gate: ScriptedPlugin, mesh: HookMesh, tenant: Tenant, deliveries: JobWorker
) -> None:
    await end(tenant)
    replacement = await mesh.plugin(None)
    await tenant.register("gate", replacement.endpoint, *BOTH)
    await deliveries.run_due()
    assert (heard_by(replacement), gate.heard) == (AS_PUBLISHED, [])


async def test_a_plugin_that_is_removed_and_registered_again_hears_of_later_ends(
    gate: ScriptedPlugin, tenant: Tenant, deliveries: JobWorker
) -> None:
    await tenant.as_client("DeletePlugin", pb.DeletePluginRequest(name="gate"))
    await tenant.register("gate", gate.endpoint, *BOTH)
    await end(tenant)
    await deliveries.run_due()
    assert heard_by(gate) == AS_PUBLISHED


async def test_a_removed_plugin_leaves_no_held_end(
    gate: ScriptedPlugin, tenant: Tenant, deliveries: JobWorker
) -> None:
    await pause(tenant)
    await end(tenant)
    await deliveries.run_due()
    await tenant.as_client("DeletePlugin", pb.DeletePluginRequest(name="gate"))
    await tenant.register("gate", gate.endpoint, *BOTH)
    await resume(tenant)
    await deliveries.run_due()
    assert gate.heard == []


async def test_a_plugin_that_is_OPEN_and_failed_at_the_gate_hears_the_end(
    mesh: HookMesh, tenant: Tenant, deliveries: JobWorker
) -> None:
    plugin = await mesh.plugin(None)  # No decision: a malformed answer at the gate.
    await tenant.register("gate", plugin.endpoint, *BOTH, policy=OPEN)
    assert (await tenant.spawn()).decision == ALLOW
    assert await tenant.log() == [("gate", "failed")]
    plugin.heard.clear()
    await end(tenant)
    await deliveries.run_due()
    assert heard_by(plugin) == AS_PUBLISHED


async def test_content_is_kept_for_a_paused_observer(
    gate: ScriptedPlugin, mesh: HookMesh, tenant: Tenant, deliveries: JobWorker
) -> None:
    """The delivery to another observer does not empty the event."""
    other: Any = await mesh.plugin(None)
    await tenant.register("other", other.endpoint, ENDED)
    await pause(tenant)
    await tenant.ended()
    await deliveries.run_due()
    assert heard_by(other) == ENDED_ONLY
    await resume(tenant)
    await deliveries.run_due()
    assert (heard_by(gate), gate.heard) == (ENDED_ONLY, other.heard)
