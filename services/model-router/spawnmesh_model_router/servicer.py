"""ModelRouterService over gRPC: reads requests, has them done, renders answers."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from grpc import aio
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceServicer
from spawnmesh_runtime.caller import current_caller

from spawnmesh_model_router.generate import generate
from spawnmesh_model_router.parse import parse_ask
from spawnmesh_model_router.parts import Parts
from spawnmesh_model_router.render import render_event

Context = aio.ServicerContext[Any, Any]


class ModelRouterServicer(ModelRouterServiceServicer):
    """One method for each RPC."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        ask = parse_ask(request, current_caller(), self._parts.monotonic(), context.time_remaining())
        async with aclosing(generate(self._parts, ask)) as events:
            async for event in events:
                yield render_event(event)
