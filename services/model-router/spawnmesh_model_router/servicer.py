"""ModelRouterService over gRPC: reads requests, has them done, renders answers."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from grpc import aio
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceServicer
from spawnmesh_runtime.caller import current_caller

from spawnmesh_model_router.ask import Ask
from spawnmesh_model_router.catalogue import list_models
from spawnmesh_model_router.domain.classify import classify
from spawnmesh_model_router.gathered import gathered
from spawnmesh_model_router.health import clear_cooldown, list_provider_health
from spawnmesh_model_router.metered import generate_within_budget
from spawnmesh_model_router.parse import parse_ask, parse_failure, parse_policy
from spawnmesh_model_router.parts import Parts
from spawnmesh_model_router.plan import plan_retry
from spawnmesh_model_router.policies import Policies
from spawnmesh_model_router.render import render_classified, render_events, render_verdict
from spawnmesh_model_router.route import explain

Context = aio.ServicerContext[Any, Any]


class ModelRouterServicer(ModelRouterServiceServicer):
    """One method for each RPC."""

    def __init__(self, parts: Parts, policies: Policies) -> None:
        self._parts = parts
        self._policies = policies

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        ask = await self._ask(request, context)
        tenant_id = current_caller().tenant_id
        events = generate_within_budget(self._parts, self._policies, tenant_id, ask)
        async with aclosing(gathered(events)) as groups:
            async for group in groups:
                yield render_events(group)

    async def ExplainRoute(self, request: pb.ExplainRouteRequest, context: Context) -> pb.ExplainRouteResponse:
        outcomes = explain(self._parts, await self._ask(request.request, context))
        return pb.ExplainRouteResponse(candidates=[render_verdict(model, outcome) for model, outcome in outcomes])

    async def ClassifyError(self, request: pb.ClassifyErrorRequest, context: Context) -> pb.ClassifyErrorResponse:
        return render_classified(classify(parse_failure(request)))

    async def PlanRetry(self, request: pb.PlanRetryRequest, context: Context) -> pb.PlanRetryResponse:
        return plan_retry(request)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=list_models(self._parts.config))

    async def ListProviderHealth(
        self, request: pb.ListProviderHealthRequest, context: Context
    ) -> pb.ListProviderHealthResponse:
        return pb.ListProviderHealthResponse(providers=list_provider_health(self._parts))

    async def ClearCooldown(self, request: pb.ClearCooldownRequest, context: Context) -> pb.ClearCooldownResponse:
        return pb.ClearCooldownResponse(was_cooling=await clear_cooldown(self._parts, request.scope, request.target))

    async def PrepareTenant(self, request: pb.PrepareTenantRequest, context: Context) -> pb.PrepareTenantResponse:
        version = await self._policies.prepare(
            current_caller().tenant_id, request.settings_version, parse_policy(request.policy)
        )
        return pb.PrepareTenantResponse(settings_version=version)

    async def PurgeTenant(self, request: pb.PurgeTenantRequest, context: Context) -> pb.PurgeTenantResponse:
        done, row_count = await self._policies.purge(current_caller().tenant_id, request.settings_version)
        return pb.PurgeTenantResponse(done=done, deleted_row_count=row_count)

    async def _ask(self, request: pb.GenerateRequest, context: Context) -> Ask:
        caller = current_caller()
        policy = await self._policies.of(caller.tenant_id)
        parts = self._parts
        return parse_ask(request, caller, parts.monotonic(), context.time_remaining(), parts.config, policy)
