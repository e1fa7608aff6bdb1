"""A plugin whose answer the test decides, and a spawn to judge."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from spawnmesh.hook.v1 import decision_pb2 as decision_pb
from spawnmesh.hook.v1 import event_pb2 as event_pb
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as pb_grpc

Behavior = Callable[[Any, Any], Awaitable[Any]]


async def allow(request: Any, context: Any) -> pb.HandleBeforeSpawnResponse:
    return pb.HandleBeforeSpawnResponse(decision=decision_pb.SpawnDecision(allow=decision_pb.Allow()))


@dataclass
class Plugin(pb_grpc.HookHandlerServiceServicer):
    """A plugin whose answer to HandleBeforeSpawn the test decides."""

    behavior: Behavior = allow
    seen: list[Any] = field(default_factory=list)
    observed: int = 0
    """Number of calls of HandleObservedEvent."""

    async def HandleBeforeSpawn(self, request: Any, context: Any) -> Any:
        self.seen.append(request)
        return await self.behavior(request, context)

    async def HandleBeforeAgentFinalize(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    async def HandleObservedEvent(self, request: Any, context: Any) -> Any:
        self.observed += 1
        return await self.behavior(request, context)


def spawn_request(**event: Any) -> pb.HandleBeforeSpawnRequest:
    return pb.HandleBeforeSpawnRequest(event=event_pb.BeforeSpawnEvent(**event))
