"""A plugin as a server of its own, which answers the mesh and nobody else."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import (
    HookHandlerServiceServicer,
    add_HookHandlerServiceServicer_to_server,
)
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.server import MeshServer, build_server, run_until_stopped
from spawnmesh_runtime.settings import ProcessSettings

from spawnmesh_client.hooks.handlers import Handlers

Context = Any


def load_handlers(name: str) -> Handlers:
    """The handlers of an importable module; the current directory is looked in too. Raises ImportError, and ValueError."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return Handlers(importlib.import_module(name))


def plugin_server(process: Process, handlers: Handlers) -> MeshServer:
    """A server that takes calls with the mesh's own tokens only."""
    server = build_server(process)
    add_HookHandlerServiceServicer_to_server(_Servicer(handlers), server)
    return server


async def serve(handlers: Handlers, settings: ProcessSettings, on_ready: Callable[[int], None] | None = None) -> None:
    """Serves until SIGTERM or SIGINT."""
    async with start_process("plugin", settings) as process:
        await run_until_stopped(process, plugin_server(process, handlers), on_ready=on_ready)


class _Servicer(HookHandlerServiceServicer):
    """Hands each call to the handlers; what they raise is hidden from the caller like any defect."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    async def HandleBeforeSpawn(
        self, request: pb.HandleBeforeSpawnRequest, context: Context
    ) -> pb.HandleBeforeSpawnResponse:
        return cast(pb.HandleBeforeSpawnResponse, await self._handlers.ask("before_spawn", request.event))

    async def HandleBeforeAgentFinalize(
        self, request: pb.HandleBeforeAgentFinalizeRequest, context: Context
    ) -> pb.HandleBeforeAgentFinalizeResponse:
        answer = await self._handlers.ask("before_agent_finalize", request.event)
        return cast(pb.HandleBeforeAgentFinalizeResponse, answer)

    async def HandleBeforeModelResolve(
        self, request: pb.HandleBeforeModelResolveRequest, context: Context
    ) -> pb.HandleBeforeModelResolveResponse:
        answer = await self._handlers.ask("before_model_resolve", request.event)
        return cast(pb.HandleBeforeModelResolveResponse, answer)

    async def HandleBeforePromptBuild(
        self, request: pb.HandleBeforePromptBuildRequest, context: Context
    ) -> pb.HandleBeforePromptBuildResponse:
        answer = await self._handlers.ask("before_prompt_build", request.event)
        return cast(pb.HandleBeforePromptBuildResponse, answer)

    async def HandleBeforeToolCall(
        self, request: pb.HandleBeforeToolCallRequest, context: Context
    ) -> pb.HandleBeforeToolCallResponse:
        return cast(pb.HandleBeforeToolCallResponse, await self._handlers.ask("before_tool_call", request.event))

    async def HandleDeliveryTarget(
        self, request: pb.HandleDeliveryTargetRequest, context: Context
    ) -> pb.HandleDeliveryTargetResponse:
        return cast(pb.HandleDeliveryTargetResponse, await self._handlers.ask("delivery_target", request.event))

    async def HandleBeforeCompaction(
        self, request: pb.HandleBeforeCompactionRequest, context: Context
    ) -> pb.HandleBeforeCompactionResponse:
        return cast(pb.HandleBeforeCompactionResponse, await self._handlers.ask("before_compaction", request.event))

    async def HandleObservedEvent(
        self, request: pb.HandleObservedEventRequest, context: Context
    ) -> pb.HandleObservedEventResponse:
        await self._handlers.tell(request.event)
        return pb.HandleObservedEventResponse()
