"""ModelRouterService over gRPC. Each method forwards to the module of its RPC."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from grpc import aio
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceServicer
from spawnmesh_runtime.caller import current_caller

from spawnmesh_model_router.rpc.classify_error import classify_error
from spawnmesh_model_router.rpc.clear_cooldown import clear_cooldown
from spawnmesh_model_router.rpc.dependencies import Dependencies
from spawnmesh_model_router.rpc.explain_route import explain_route
from spawnmesh_model_router.rpc.generate import generate
from spawnmesh_model_router.rpc.list_failures import list_failures
from spawnmesh_model_router.rpc.list_models import list_models
from spawnmesh_model_router.rpc.list_provider_health import list_provider_health
from spawnmesh_model_router.rpc.list_spend import list_spend
from spawnmesh_model_router.rpc.plan_retry import plan_retry

Context = aio.ServicerContext[Any, Any]


class ModelRouterServicer(ModelRouterServiceServicer):
    """The methods of the service."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        stream = generate(request, current_caller(), context.time_remaining(), self._deps)
        async with aclosing(stream) as responses:
            async for response in responses:
                yield response

    async def ExplainRoute(
        self, request: pb.ExplainRouteRequest, context: Context
    ) -> pb.ExplainRouteResponse:
        return await explain_route(request, current_caller(), context.time_remaining(), self._deps)

    async def ClassifyError(
        self, request: pb.ClassifyErrorRequest, _context: Context
    ) -> pb.ClassifyErrorResponse:
        return await classify_error(request, current_caller(), self._deps)

    async def PlanRetry(self, request: pb.PlanRetryRequest, _context: Context) -> pb.PlanRetryResponse:
        return await plan_retry(request, current_caller(), self._deps)

    async def ListModels(self, request: pb.ListModelsRequest, _context: Context) -> pb.ListModelsResponse:
        return await list_models(request, current_caller(), self._deps)

    async def ListProviderHealth(
        self, request: pb.ListProviderHealthRequest, _context: Context
    ) -> pb.ListProviderHealthResponse:
        return await list_provider_health(request, current_caller(), self._deps)

    async def ListSpend(self, request: pb.ListSpendRequest, _context: Context) -> pb.ListSpendResponse:
        return await list_spend(request, current_caller(), self._deps)

    async def ListFailures(
        self, request: pb.ListFailuresRequest, _context: Context
    ) -> pb.ListFailuresResponse:
        return await list_failures(request, current_caller(), self._deps)

    async def ClearCooldown(
        self, request: pb.ClearCooldownRequest, _context: Context
    ) -> pb.ClearCooldownResponse:
        return await clear_cooldown(request, current_caller(), self._deps)
