"""A plugin as a server: it answers the calls of the mesh for its tenants only."""

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

from spawnmesh_plugin.handlers import Handlers
from spawnmesh_plugin.settings import PluginSettings

Context = Any


class _EveryTenant:
    def __contains__(self, _tenant_id: object) -> bool:
        return True


ALL_TENANTS: Container[str] = _EveryTenant()


def load_handlers(name: str) -> Handlers:
    """Load the handlers of a module, also from the current directory.

    Raises ImportError and ValueError.
    """
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return Handlers(importlib.import_module(name))


def plugin_server(
    process: Process, handlers: Handlers, *, endpoint: str, tenants: Container[str]
) -> MeshServer:
    """Build a server that answers the mesh's calls for these tenants.

    `endpoint` is the plugin's endpoint exactly as it is registered. Raises ValueError for a process
    that cannot verify tokens.
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
    """Serve until SIGTERM or SIGINT, under this name in telemetry.

    The settings give the registered endpoint and the tenants.
    """
    tenants = ALL_TENANTS if settings.all_tenants else frozenset(settings.tenants)
    async with start_process(name, settings) as process:
        server = plugin_server(process, handlers, endpoint=settings.registered_endpoint, tenants=tenants)
        await run_until_stopped(process, server, on_ready=on_ready)


class _Servicer(HookHandlerServiceServicer):
    """Pass each call to the handlers.

    Their errors are hidden from the caller like any internal error.
    """

    def __init__(self, handlers: Handlers, tenants: Container[str]) -> None:
        self._handlers = handlers
        self._tenants = tenants

    async def HandleBeforeSpawn(
        self, request: pb.HandleBeforeSpawnRequest, context: Context
    ) -> pb.HandleBeforeSpawnResponse:
        return cast(pb.HandleBeforeSpawnResponse, await self._dispatch("before_spawn", request.event))

    async def HandleBeforeAgentFinalize(
        self, request: pb.HandleBeforeAgentFinalizeRequest, context: Context
    ) -> pb.HandleBeforeAgentFinalizeResponse:
        answer = await self._dispatch("before_agent_finalize", request.event)
        return cast(pb.HandleBeforeAgentFinalizeResponse, answer)

    async def HandleBeforeModelResolve(
        self, request: pb.HandleBeforeModelResolveRequest, context: Context
    ) -> pb.HandleBeforeModelResolveResponse:
        answer = await self._dispatch("before_model_resolve", request.event)
        return cast(pb.HandleBeforeModelResolveResponse, answer)

    async def HandleBeforePromptBuild(
        self, request: pb.HandleBeforePromptBuildRequest, context: Context
    ) -> pb.HandleBeforePromptBuildResponse:
        answer = await self._dispatch("before_prompt_build", request.event)
        return cast(pb.HandleBeforePromptBuildResponse, answer)

    async def HandleBeforeToolCall(
        self, request: pb.HandleBeforeToolCallRequest, context: Context
    ) -> pb.HandleBeforeToolCallResponse:
        return cast(pb.HandleBeforeToolCallResponse, await self._dispatch("before_tool_call", request.event))

    async def HandleDeliveryTarget(
        self, request: pb.HandleDeliveryTargetRequest, context: Context
    ) -> pb.HandleDeliveryTargetResponse:
        return cast(pb.HandleDeliveryTargetResponse, await self._dispatch("delivery_target", request.event))

    async def HandleBeforeCompaction(
        self, request: pb.HandleBeforeCompactionRequest, context: Context
    ) -> pb.HandleBeforeCompactionResponse:
        return cast(
            pb.HandleBeforeCompactionResponse, await self._dispatch("before_compaction", request.event)
        )

    async def HandleObservedEvent(
        self, request: pb.HandleObservedEventRequest, context: Context
    ) -> pb.HandleObservedEventResponse:
        self._check_tenant()
        await self._handlers.observe(request.event)
        return pb.HandleObservedEventResponse()

    async def _dispatch(self, hook: str, event: Any) -> Any:
        self._check_tenant()
        return await self._handlers.handle(hook, event)

    def _check_tenant(self) -> None:
        """Refuse tenants that this plugin does not serve.

        Anybody may register any endpoint, so a call of the mesh does not prove that the plugin's
        operator agreed.
        """
        tenant_id = current_caller().tenant_id
        if tenant_id not in self._tenants:
            raise MeshError(
                Reason.CALLER_NOT_ALLOWED,
                f"this plugin does not answer for the tenant {tenant_id};"
                " its operator configures the tenants that it serves",
                facts={"tenant": tenant_id},
            )
