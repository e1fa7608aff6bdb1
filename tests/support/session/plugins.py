"""A plugin that decides as a test says, served and registered for the test's tenant."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from spawnmesh.hook.v1 import hook_handler_service_pb2 as handler_pb
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.decision_pb2 import Allow, Continue, FinalizeDecision, SpawnDecision
from spawnmesh.hook.v1.event_pb2 import HOOK_KIND_BEFORE_AGENT_FINALIZE, HOOK_KIND_BEFORE_SPAWN
from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import (
    HookHandlerServiceServicer,
    add_HookHandlerServiceServicer_to_server,
)
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh_runtime.impersonation import use_token

from tests.support.serving import caller_at, client_tokens
from tests.support.session.harness import Mesh


async def _nothing(_session_id: str) -> None:
    return


class Plugin(HookHandlerServiceServicer):
    """`meanwhile` runs, with the session's id, before it answers."""

    def __init__(
        self,
        *,
        on_spawn: SpawnDecision | None = None,
        on_finalize: FinalizeDecision | None = None,
        meanwhile: Callable[[str], Awaitable[None]] = _nothing,
    ) -> None:
        self.on_spawn = on_spawn or SpawnDecision(allow=Allow())
        go_on: dict[str, Any] = {
            "continue": Continue()
        }  # A keyword of the language cannot be written as one of a call.
        self.on_finalize = on_finalize or FinalizeDecision(**go_on)
        self.meanwhile = meanwhile
        self.tasks: list[str] = []

    async def HandleBeforeSpawn(self, request: Any, context: Any) -> handler_pb.HandleBeforeSpawnResponse:
        self.tasks.append(request.event.task)
        await self.meanwhile(request.event.session_id)
        return handler_pb.HandleBeforeSpawnResponse(decision=self.on_spawn)

    async def HandleBeforeAgentFinalize(
        self, request: Any, context: Any
    ) -> handler_pb.HandleBeforeAgentFinalizeResponse:
        await self.meanwhile(request.event.session_id)
        return handler_pb.HandleBeforeAgentFinalizeResponse(decision=self.on_finalize)

    async def HandleObservedEvent(self, request: Any, context: Any) -> Any:
        raise AssertionError("not registered for this")


@asynccontextmanager
async def plugged(
    mesh: Mesh,
    peers: dict[str, str],
    plugin: Plugin,
    *,
    name: str = "gate",
    sees_content: bool = False,
    count: int = 1,
) -> AsyncIterator[None]:
    """Register the plugin for the tenant's gates, so many times; it fails after the block."""
    server = grpc.aio.server()
    add_HookHandlerServiceServicer_to_server(plugin, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    described = hook_pb.Plugin(
        endpoint=f"grpc://127.0.0.1:{port}",
        hooks=[HOOK_KIND_BEFORE_SPAWN, HOOK_KIND_BEFORE_AGENT_FINALIZE],
        grants=[
            hook_pb.GRANT_FINALIZE_CONTROL,
            *([hook_pb.GRANT_CONVERSATION_ACCESS] if sees_content else []),
        ],
    )
    try:
        async with caller_at(peers["hook"], "hook") as peer:
            stub: Any = HookServiceStub(peer.channel)
            with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
                for number in range(count):
                    described.name = f"{name}-{number}" if number else name
                    await peer.unary(
                        stub.UpdatePlugin,
                        hook_pb.UpdatePluginRequest(allow_missing=True, plugin=described),
                        timeout_seconds=60,
                    )
        yield
    finally:
        await server.stop(None)
