"""HookService over gRPC: reads requests, has them done, renders answers."""

from typing import Any

from grpc import aio
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceServicer
from spawnmesh_core.errors import invalid
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import current_caller

from spawnmesh_hook import store
from spawnmesh_hook.budget import budget_within
from spawnmesh_hook.ended_news import EndedNews
from spawnmesh_hook.finalize_gate import FinalizeGate
from spawnmesh_hook.parse import parse_plugin
from spawnmesh_hook.registry import PluginRegistry
from spawnmesh_hook.render import render_decision, render_delivery, render_judgement, render_plugin
from spawnmesh_hook.spawn_gate import SpawnGate

_DEFAULT_PAGE_SIZE = 100

Context = aio.ServicerContext[Any, Any]


class HookServicer(HookServiceServicer):
    """One method for each RPC; the tenant is always the caller's."""

    def __init__(
        self, database: Database, registry: PluginRegistry, spawns: SpawnGate, drafts: FinalizeGate, news: EndedNews
    ) -> None:
        self._database = database
        self._registry = registry
        self._spawns = spawns
        self._drafts = drafts
        self._news = news

    async def RegisterPlugin(self, request: pb.RegisterPluginRequest, context: Context) -> pb.RegisterPluginResponse:
        plugin = parse_plugin(request.plugin)
        await self._registry.register(current_caller().tenant_id, plugin)
        return pb.RegisterPluginResponse(plugin=render_plugin(plugin))

    async def ListPlugins(self, request: pb.ListPluginsRequest, context: Context) -> pb.ListPluginsResponse:
        plugins = await self._registry.list(current_caller().tenant_id)
        return pb.ListPluginsResponse(plugins=map(render_plugin, plugins))

    async def RemovePlugin(self, request: pb.RemovePluginRequest, context: Context) -> pb.RemovePluginResponse:
        await self._registry.remove(current_caller().tenant_id, request.name)
        return pb.RemovePluginResponse()

    async def DispatchBeforeSpawn(
        self, request: pb.DispatchBeforeSpawnRequest, context: Context
    ) -> pb.DispatchBeforeSpawnResponse:
        budget = budget_within(context.time_remaining())
        return render_judgement(await self._spawns.judge(current_caller().tenant_id, request.event, budget))

    async def DispatchBeforeAgentFinalize(
        self, request: pb.DispatchBeforeAgentFinalizeRequest, context: Context
    ) -> pb.DispatchBeforeAgentFinalizeResponse:
        if not request.event.run_id:
            raise invalid("event.run_id", "must name the run, by which revisions are counted")
        budget = budget_within(context.time_remaining())
        tenant_id = current_caller().tenant_id
        return render_decision(await self._drafts.judge(tenant_id, request.event, request.dispatch_key, budget))

    async def DispatchSubagentEnded(
        self, request: pb.DispatchSubagentEndedRequest, context: Context
    ) -> pb.DispatchSubagentEndedResponse:
        if not request.event.event_key:
            raise invalid("event.event_key", "must name the event, so that a repeat tells nobody twice")
        budget = budget_within(context.time_remaining())
        delivered_count = await self._news.tell(current_caller().tenant_id, request.event, budget)
        return pb.DispatchSubagentEndedResponse(delivered_count=delivered_count)

    async def ListDeliveries(self, request: pb.ListDeliveriesRequest, context: Context) -> pb.ListDeliveriesResponse:
        tenant_id = current_caller().tenant_id
        limit = request.page_size or _DEFAULT_PAGE_SIZE
        async with self._database.transaction(tenant_id) as connection:
            deliveries = await store.list_deliveries(connection, tenant_id, request.session_id, limit)
        return pb.ListDeliveriesResponse(deliveries=map(render_delivery, deliveries))
