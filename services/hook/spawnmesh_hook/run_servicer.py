"""RunHookService over gRPC: reads requests, has them done, renders answers."""

from dataclasses import dataclass
from typing import Any

from grpc import aio
from spawnmesh.hook.v1 import event_pb2
from spawnmesh.hook.v1 import run_hook_service_pb2 as pb
from spawnmesh.hook.v1.run_hook_service_pb2_grpc import RunHookServiceServicer
from spawnmesh_core.errors import not_found
from spawnmesh_runtime.caller import current_caller

from spawnmesh_hook.budget import budget_within
from spawnmesh_hook.directory import PluginDirectory
from spawnmesh_hook.render import render_hooks, render_model, render_prompt, render_tool_call
from spawnmesh_hook.run_modifiers import RunModifiers

Context = aio.ServicerContext[Any, Any]
Event = event_pb2.BeforeModelResolveEvent | event_pb2.BeforePromptBuildEvent | event_pb2.BeforeToolCallEvent


@dataclass(frozen=True)
class RunHookServicer(RunHookServiceServicer):
    """One method for each RPC; tenant, session and run are always the caller's."""

    directory: PluginDirectory
    modifiers: RunModifiers

    async def ListActiveHooks(self, request: pb.ListActiveHooksRequest, context: Context) -> pb.ListActiveHooksResponse:
        return render_hooks(await self.directory.active_hooks(current_caller().tenant_id))

    async def DispatchBeforeModelResolve(
        self, request: pb.DispatchBeforeModelResolveRequest, context: Context
    ) -> pb.DispatchBeforeModelResolveResponse:
        budget = budget_within(context.time_remaining())
        return render_model(await self.modifiers.model(_own(request.event), request.event, budget))

    async def DispatchBeforePromptBuild(
        self, request: pb.DispatchBeforePromptBuildRequest, context: Context
    ) -> pb.DispatchBeforePromptBuildResponse:
        budget = budget_within(context.time_remaining())
        return render_prompt(await self.modifiers.prompt(_own(request.event), request.event, budget))

    async def DispatchBeforeToolCall(
        self, request: pb.DispatchBeforeToolCallRequest, context: Context
    ) -> pb.DispatchBeforeToolCallResponse:
        budget = budget_within(context.time_remaining())
        return render_tool_call(await self.modifiers.tool_call(_own(request.event), request.event, budget))


def _own(event: Event) -> str:
    """The caller's tenant. Raises NOT_FOUND for what is not the caller's own run."""
    caller = current_caller()
    if event.session_id != caller.session_id:
        raise not_found("session", event.session_id)
    if event.run_id != caller.run_id:
        raise not_found("run", event.run_id)
    return caller.tenant_id
