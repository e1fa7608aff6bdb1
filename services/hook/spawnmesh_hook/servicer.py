"""HookService over gRPC: reads requests, has them done, renders answers."""

from dataclasses import dataclass
from typing import Any

from grpc import aio
from spawnmesh.hook.v1 import compaction_pb2, delivery_target_pb2
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceServicer
from spawnmesh_core.errors import invalid, not_found
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import Caller, CallerKind, current_caller

from spawnmesh_hook import store
from spawnmesh_hook.budget import budget_within
from spawnmesh_hook.compaction_gate import CompactionGate
from spawnmesh_hook.delivery_target import DeliveryTargets
from spawnmesh_hook.domain.plugins import RUN_OBSERVERS, SESSION_OBSERVERS, TRANSCRIPT_OBSERVERS, HookKind
from spawnmesh_hook.finalize_gate import FinalizeGate
from spawnmesh_hook.native_relay import NativeRelay
from spawnmesh_hook.outbox import Outbox, kind_of
from spawnmesh_hook.parse import parse_delivery_query, parse_plugin
from spawnmesh_hook.plugin_calls import PluginCalls
from spawnmesh_hook.registry import PluginRegistry
from spawnmesh_hook.render import (
    render_compaction,
    render_decision,
    render_delivery,
    render_judgement,
    render_native,
    render_page,
    render_plugin,
    render_target,
)
from spawnmesh_hook.spawn_gate import SpawnGate
from spawnmesh_hook.trials import try_plugin

_DEFAULT_PAGE_SIZE = 100

Context = aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class HookServicer(HookServiceServicer):
    """One method for each RPC; the tenant is always the caller's."""

    database: Database
    registry: PluginRegistry
    calls: PluginCalls
    spawns: SpawnGate
    drafts: FinalizeGate
    targets: DeliveryTargets
    compactions: CompactionGate
    outbox: Outbox
    relay: NativeRelay

    async def RegisterPlugin(self, request: pb.RegisterPluginRequest, context: Context) -> pb.RegisterPluginResponse:
        plugin, secret = await self.registry.register(
            current_caller().tenant_id, parse_plugin(request.plugin), allow_unreachable=request.allow_unreachable
        )
        return pb.RegisterPluginResponse(plugin=render_plugin(plugin), webhook_secret=secret)

    async def ListPlugins(self, request: pb.ListPluginsRequest, context: Context) -> pb.ListPluginsResponse:
        plugins = await self.registry.list(current_caller().tenant_id)
        return pb.ListPluginsResponse(plugins=map(render_plugin, plugins))

    async def PausePlugin(self, request: pb.PausePluginRequest, context: Context) -> pb.PausePluginResponse:
        plugin = await self.registry.set_paused(current_caller().tenant_id, request.name, paused=True)
        return pb.PausePluginResponse(plugin=render_plugin(plugin))

    async def ResumePlugin(self, request: pb.ResumePluginRequest, context: Context) -> pb.ResumePluginResponse:
        plugin = await self.registry.set_paused(current_caller().tenant_id, request.name, paused=False)
        return pb.ResumePluginResponse(plugin=render_plugin(plugin))

    async def RemovePlugin(self, request: pb.RemovePluginRequest, context: Context) -> pb.RemovePluginResponse:
        await self.registry.remove(current_caller().tenant_id, request.name)
        return pb.RemovePluginResponse()

    async def TestPlugin(self, request: pb.TestPluginRequest, context: Context) -> pb.TestPluginResponse:
        tenant_id = current_caller().tenant_id
        plugin = await self.registry.get(tenant_id, request.name)
        tried = await try_plugin(self.calls, tenant_id, plugin, budget_within(context.time_remaining()))
        return pb.TestPluginResponse(deliveries=map(render_delivery, tried))

    async def DispatchBeforeSpawn(
        self, request: pb.DispatchBeforeSpawnRequest, context: Context
    ) -> pb.DispatchBeforeSpawnResponse:
        budget = budget_within(context.time_remaining())
        return render_judgement(await self.spawns.judge(current_caller().tenant_id, request.event, budget))

    async def DispatchBeforeAgentFinalize(
        self, request: pb.DispatchBeforeAgentFinalizeRequest, context: Context
    ) -> pb.DispatchBeforeAgentFinalizeResponse:
        if not request.event.run_id:
            raise invalid("event.run_id", "must name the run, by which revisions are counted")
        budget = budget_within(context.time_remaining())
        tenant_id = current_caller().tenant_id
        return render_decision(await self.drafts.judge(tenant_id, request.event, request.dispatch_key, budget))

    async def DispatchDeliveryTarget(
        self, request: delivery_target_pb2.DispatchDeliveryTargetRequest, context: Context
    ) -> delivery_target_pb2.DispatchDeliveryTargetResponse:
        budget = budget_within(context.time_remaining())
        return render_target(await self.targets.choose(current_caller().tenant_id, request.event, budget))

    async def DispatchBeforeCompaction(
        self, request: compaction_pb2.DispatchBeforeCompactionRequest, context: Context
    ) -> compaction_pb2.DispatchBeforeCompactionResponse:
        budget = budget_within(context.time_remaining())
        return render_compaction(await self.compactions.judge(current_caller().tenant_id, request.event, budget))

    async def PublishEvents(self, request: pb.PublishEventsRequest, context: Context) -> pb.PublishEventsResponse:
        caller = current_caller()
        _check_own(request, caller)
        queued = await self.outbox.publish(caller.tenant_id, request.events, run_id=caller.run_id)
        return pb.PublishEventsResponse(queued_count=queued)

    async def ListDeliveries(self, request: pb.ListDeliveriesRequest, context: Context) -> pb.ListDeliveriesResponse:
        tenant_id = current_caller().tenant_id
        query, limit = parse_delivery_query(request), request.page_size or _DEFAULT_PAGE_SIZE
        async with self.database.transaction(tenant_id) as connection:
            deliveries = await store.list_deliveries(connection, tenant_id, query, limit)
        return render_page(deliveries, limit)

    async def RelayNativeStop(self, request: pb.RelayNativeStopRequest, context: Context) -> pb.RelayNativeStopResponse:
        budget = budget_within(context.time_remaining())
        harness = pb.NativeHarness.Name(request.harness)
        tenant_id = current_caller().tenant_id
        return render_native(await self.relay.judge(tenant_id, harness, request.event_json, request.request_id, budget))


def _check_own(request: pb.PublishEventsRequest, caller: Caller) -> None:
    tells = _tells(caller)
    for place, event in enumerate(request.events):
        if caller.kind is CallerKind.RUN:
            if event.session_id != caller.session_id:
                raise not_found("session", event.session_id)
            if event.run_id != caller.run_id:
                raise not_found("run", event.run_id)
        if kind_of(event) not in tells:
            raise invalid(f"events[{place}].event", f"is not for a {caller.service or 'run'} to tell")


def _tells(caller: Caller) -> frozenset[HookKind]:
    if caller.kind is CallerKind.RUN:
        return RUN_OBSERVERS
    return TRANSCRIPT_OBSERVERS if caller.service == "transcript" else SESSION_OBSERVERS
