"""A plugin as a server of its own, which answers the mesh about the tenants that it is for, and nobody else."""

import importlib
import sys
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, cast

from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import (
    HookHandlerServiceServicer,
    add_HookHandlerServiceServicer_to_server,
)
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import current_caller
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.server import MeshServer, build_server, run_until_stopped

from spawnmesh_client.hooks.handlers import Handlers
from spawnmesh_client.settings import PluginSettings

Context = Any


class _EveryTenant:
    def __contains__(self, _tenant_id: object) -> bool:
        return True


EVERY_TENANT: Container[str] = _EveryTenant()


def load_handlers(name: str) -> Handlers:
    """The handlers of an importable module; the current directory is looked in too. Raises ImportError, and ValueError."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return Handlers(importlib.import_module(name))


def plugin_server(process: Process, handlers: Handlers, *, endpoint: str, tenants: Container[str]) -> MeshServer:
    """A server that takes calls of the mesh about these tenants, made to the plugin at the endpoint, which is told as it is registered.

    Raises ValueError for a process that cannot verify tokens.
    """
    server = build_server(process, plugin=endpoint)
    add_HookHandlerServiceServicer_to_server(_Servicer(handlers, tenants), server)
    return server


async def serve(
    handlers: Handlers,
    settings: PluginSettings,
    on_ready: Callable[[int], None] | None = None,
    *,
    name: str = "plugin",
) -> None:
    """Serves, under this name in telemetry, until SIGTERM or SIGINT. The settings say where it is registered, and for whom it is."""
    tenants = EVERY_TENANT if settings.all_tenants else frozenset(settings.tenants)
    async with start_process(name, settings) as process:
        server = plugin_server(process, handlers, endpoint=settings.registered_endpoint, tenants=tenants)
        await run_until_stopped(process, server, on_ready=on_ready)


class _Servicer(HookHandlerServiceServicer):
    """Hands each call to the handlers; what they raise is hidden from the caller like any defect."""

    def __init__(self, handlers: Handlers, tenants: Container[str]) -> None:
        self._handlers = handlers
        self._tenants = tenants

    async def HandleBeforeSpawn(
        self, request: pb.HandleBeforeSpawnRequest, context: Context
    ) -> pb.HandleBeforeSpawnResponse:
        return cast(pb.HandleBeforeSpawnResponse, await self._ask("before_spawn", request.event))

    async def HandleBeforeAgentFinalize(
        self, request: pb.HandleBeforeAgentFinalizeRequest, context: Context
    ) -> pb.HandleBeforeAgentFinalizeResponse:
        answer = await self._ask("before_agent_finalize", request.event)
        return cast(pb.HandleBeforeAgentFinalizeResponse, answer)

    async def HandleBeforeModelResolve(
        self, request: pb.HandleBeforeModelResolveRequest, context: Context
    ) -> pb.HandleBeforeModelResolveResponse:
        answer = await self._ask("before_model_resolve", request.event)
        return cast(pb.HandleBeforeModelResolveResponse, answer)

    async def HandleBeforePromptBuild(
        self, request: pb.HandleBeforePromptBuildRequest, context: Context
    ) -> pb.HandleBeforePromptBuildResponse:
        answer = await self._ask("before_prompt_build", request.event)
        return cast(pb.HandleBeforePromptBuildResponse, answer)

    async def HandleBeforeToolCall(
        self, request: pb.HandleBeforeToolCallRequest, context: Context
    ) -> pb.HandleBeforeToolCallResponse:
        return cast(pb.HandleBeforeToolCallResponse, await self._ask("before_tool_call", request.event))

    async def HandleDeliveryTarget(
        self, request: pb.HandleDeliveryTargetRequest, context: Context
    ) -> pb.HandleDeliveryTargetResponse:
        return cast(pb.HandleDeliveryTargetResponse, await self._ask("delivery_target", request.event))

    async def HandleBeforeCompaction(
        self, request: pb.HandleBeforeCompactionRequest, context: Context
    ) -> pb.HandleBeforeCompactionResponse:
        return cast(pb.HandleBeforeCompactionResponse, await self._ask("before_compaction", request.event))

    async def HandleObservedEvent(
        self, request: pb.HandleObservedEventRequest, context: Context
    ) -> pb.HandleObservedEventResponse:
        self._check_tenant()
        await self._handlers.tell(request.event)
        return pb.HandleObservedEventResponse()

    async def _ask(self, hook: str, event: Any) -> Any:
        self._check_tenant()
        return await self._handlers.ask(hook, event)

    def _check_tenant(self) -> None:
        """Anybody may register any endpoint: that the mesh calls does not say that the plugin's operator wants to judge for the tenant."""
        tenant_id = current_caller().tenant_id
        if tenant_id not in self._tenants:
            raise MeshError(
                Reason.CALLER_NOT_ALLOWED,
                f"this plugin does not answer for the tenant {tenant_id}; whoever serves it says for whom it does",
                facts={"tenant": tenant_id},
            )
