"""The hook service as a runner's peer: it answers as a test says and records the calls."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spawnmesh.hook.v1 import decision_pb2, event_pb2, hook_service_pb2, observed_pb2
from spawnmesh.hook.v1 import hook_service_pb2_grpc as hook_grpc
from spawnmesh.hook.v1 import run_hook_service_pb2 as pb
from spawnmesh.hook.v1 import run_hook_service_pb2_grpc as run_hook_grpc
from spawnmesh_core.errors import MeshError


@dataclass(slots=True)
class ScriptedHooks:
    """The hooks in `active` have a subscriber, the others have none."""

    active: Sequence["event_pb2.HookKind.ValueType"] = ()
    model: decision_pb2.ModelDecision | MeshError = field(default_factory=decision_pb2.ModelDecision)
    prompt: decision_pb2.PromptDecision | MeshError = field(default_factory=decision_pb2.PromptDecision)
    tool_call: decision_pb2.ToolCallDecision | MeshError = field(
        default_factory=lambda: decision_pb2.ToolCallDecision(proceed=decision_pb2.Proceed())
    )
    approval_reason: str = ""
    hold_tool_calls: asyncio.Event | None = None
    asked: list[Any] = field(default_factory=list)
    published: list[observed_pb2.ObservedEvent] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    list_count: int = 0

    def ask(self, hook: str, event: Any, decision: Any) -> Any:
        """Record the event. Return the decision, or raise the scripted refusal."""
        self.asked.append(event)
        self.order.append(hook)
        if isinstance(decision, MeshError):
            raise decision
        return decision

    def add_to(self, server: Any) -> None:
        """Register the services."""
        hooks: Any = (
            # To the type checker, a peer without some RPCs is abstract; the runner does not call
            # those.
            _Hooks
        )
        hook_grpc.add_HookServiceServicer_to_server(hooks(self), server)
        run_hook_grpc.add_RunHookServiceServicer_to_server(_RunHooks(self), server)


class _Hooks(hook_grpc.HookServiceServicer):
    def __init__(self, hooks: ScriptedHooks) -> None:
        self._hooks = hooks

    async def PublishEvents(
        self, request: hook_service_pb2.PublishEventsRequest, context: Any
    ) -> hook_service_pb2.PublishEventsResponse:
        self._hooks.published += request.events
        self._hooks.order += [event.WhichOneof("event") or "" for event in request.events]
        return hook_service_pb2.PublishEventsResponse(queued_count=len(request.events))


class _RunHooks(run_hook_grpc.RunHookServiceServicer):
    def __init__(self, hooks: ScriptedHooks) -> None:
        self._hooks = hooks

    async def ListActiveHooks(self, request: Any, context: Any) -> pb.ListActiveHooksResponse:
        self._hooks.list_count += 1
        return pb.ListActiveHooksResponse(hooks=self._hooks.active)

    async def DispatchBeforeModelResolve(
        self, request: Any, context: Any
    ) -> pb.DispatchBeforeModelResolveResponse:
        decision = self._hooks.ask("before_model_resolve", request.event, self._hooks.model)
        return pb.DispatchBeforeModelResolveResponse(decision=decision, decided_by="chooser")

    async def DispatchBeforePromptBuild(
        self, request: Any, context: Any
    ) -> pb.DispatchBeforePromptBuildResponse:
        decision = self._hooks.ask("before_prompt_build", request.event, self._hooks.prompt)
        return pb.DispatchBeforePromptBuildResponse(decision=decision, decided_by=["brand", "memory"])

    async def DispatchBeforeToolCall(self, request: Any, context: Any) -> pb.DispatchBeforeToolCallResponse:
        decision = self._hooks.ask("before_tool_call", request.event, self._hooks.tool_call)
        if self._hooks.hold_tool_calls is not None:
            await self._hooks.hold_tool_calls.wait()
        rewritten_by = ["gate", "scrubber"] if decision.HasField("rewrite") else []
        others = ["gate"] if decision.HasField("block") else ["cfo"] if self._hooks.approval_reason else []
        return pb.DispatchBeforeToolCallResponse(
            decision=decision,
            decided_by=[*rewritten_by, *others],
            rewritten_by=rewritten_by,
            approval_reason=self._hooks.approval_reason,
        )
