"""A plugin that is a real server, and answers as a test says."""

from collections.abc import Awaitable, Callable
from typing import Any

from spawnmesh.hook.v1 import decision_pb2 as decisions
from spawnmesh.hook.v1 import hook_handler_service_pb2 as handler_pb
from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import HookHandlerServiceServicer
from spawnmesh_runtime.caller import Caller, current_caller

ALLOW = decisions.SpawnDecision(allow=decisions.Allow())
CONTINUE = decisions.FinalizeDecision()
getattr(CONTINUE, "continue").SetInParent()

Decide = Callable[[Any], Awaitable[Any]]


def deny(reason: str) -> decisions.SpawnDecision:
    return decisions.SpawnDecision(deny=decisions.Deny(reason=reason))


def revise(reason: str) -> decisions.FinalizeDecision:
    return decisions.FinalizeDecision(revise=decisions.Revise(reason=reason))


def finalize(reason: str = "") -> decisions.FinalizeDecision:
    return decisions.FinalizeDecision(finalize=decisions.Finalize(reason=reason))


class ScriptedPlugin(HookHandlerServiceServicer):
    """Answers with the result of `decide`, and records its events and callers."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.heard: list[Any] = []
        self.callers: list[Caller] = []
        self.decide: Decide = _unasked

    def says(self, *answers: Any) -> None:
        """Give the answers in turn, and repeat the last one."""
        left = list(answers)

        async def decide(_event: Any) -> Any:
            return left.pop(0) if len(left) > 1 else left[0]

        self.decide = decide

    async def HandleBeforeSpawn(self, request: Any, context: Any) -> handler_pb.HandleBeforeSpawnResponse:
        return handler_pb.HandleBeforeSpawnResponse(decision=await self._hear(request.event))

    async def HandleBeforeAgentFinalize(
        self, request: Any, context: Any
    ) -> handler_pb.HandleBeforeAgentFinalizeResponse:
        return handler_pb.HandleBeforeAgentFinalizeResponse(decision=await self._hear(request.event))

    async def HandleBeforeModelResolve(
        self, request: Any, context: Any
    ) -> handler_pb.HandleBeforeModelResolveResponse:
        return handler_pb.HandleBeforeModelResolveResponse(decision=await self._hear(request.event))

    async def HandleBeforePromptBuild(
        self, request: Any, context: Any
    ) -> handler_pb.HandleBeforePromptBuildResponse:
        return handler_pb.HandleBeforePromptBuildResponse(decision=await self._hear(request.event))

    async def HandleBeforeToolCall(
        self, request: Any, context: Any
    ) -> handler_pb.HandleBeforeToolCallResponse:
        return handler_pb.HandleBeforeToolCallResponse(decision=await self._hear(request.event))

    async def HandleDeliveryTarget(
        self, request: Any, context: Any
    ) -> handler_pb.HandleDeliveryTargetResponse:
        return handler_pb.HandleDeliveryTargetResponse(decision=await self._hear(request.event))

    async def HandleBeforeCompaction(
        self, request: Any, context: Any
    ) -> handler_pb.HandleBeforeCompactionResponse:
        return handler_pb.HandleBeforeCompactionResponse(decision=await self._hear(request.event))

    async def HandleObservedEvent(self, request: Any, context: Any) -> handler_pb.HandleObservedEventResponse:
        await self._hear(request.event)
        return handler_pb.HandleObservedEventResponse()

    async def _hear(self, event: Any) -> Any:
        self.heard.append(event)
        self.callers.append(current_caller())
        return await self.decide(event)


async def _unasked(_event: Any) -> Any:
    return None
