"""A plugin as a server of its own, which answers the mesh and nobody else."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.server import MeshServer, build_server, run_until_stopped
from spawnmesh_runtime.settings import ProcessSettings

from spawnmesh_client.hooks.handlers import ASKED, Handlers

SERVICE = "spawnmesh.hook.v1.HookHandlerService"


def load_handlers(name: str) -> Handlers:
    """The handlers of an importable module; the current directory is looked in too. Raises ImportError, and ValueError."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return Handlers(importlib.import_module(name))


def add_handlers(handlers: Handlers, server: grpc.aio.Server) -> None:
    """Answers HookHandlerService on the server."""
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, _methods(handlers)),))


def plugin_server(process: Process, handlers: Handlers) -> MeshServer:
    """A server that takes calls with the mesh's own tokens only."""
    server = build_server(process)
    add_handlers(handlers, server)
    return server


async def serve(handlers: Handlers, settings: ProcessSettings, on_ready: Callable[[int], None] | None = None) -> None:
    """Serves until SIGTERM or SIGINT."""
    async with start_process("plugin", settings) as process:
        await run_until_stopped(process, plugin_server(process, handlers), on_ready=on_ready)


def _methods(handlers: Handlers) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
    def asked(name: str) -> Callable[[Any, Any], Any]:
        async def handle(request: Any, context: Any) -> Any:
            return await handlers.ask(name, request.event)

        return handle

    async def tell(request: pb.HandleObservedEventRequest, context: Any) -> pb.HandleObservedEventResponse:
        await handlers.tell(request.event)
        return pb.HandleObservedEventResponse()

    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        one.method: _method(asked(name), one.request) for name, one in ASKED.items()
    }
    methods["HandleObservedEvent"] = _method(tell, pb.HandleObservedEventRequest)
    return methods


def _method(handle: Callable[[Any, Any], Any], request: type[Any]) -> "grpc.RpcMethodHandler[Any, Any]":
    return grpc.unary_unary_rpc_method_handler(
        handle, request_deserializer=request.FromString, response_serializer=_bytes_of
    )


def _bytes_of(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
