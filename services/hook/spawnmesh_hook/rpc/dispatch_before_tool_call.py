"""DispatchBeforeToolCall: call the plugins for BEFORE_TOOL_CALL."""

from contextlib import aclosing

from spawnmesh.hook.v1 import decision_pb2, event_pb2
from spawnmesh.hook.v1 import run_hook_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.modifiers import MergedToolCall, ToolCallAnswer, merge_tool_call
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.operations import request_builders
from spawnmesh_hook.operations.time_budget import TimeBudget
from spawnmesh_hook.operations.tool_call_rewrites import rewritten_arguments
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.messages import check_own_run


async def dispatch_before_tool_call(
    request: pb.DispatchBeforeToolCallRequest, caller: Caller, deps: Dependencies, budget: TimeBudget
) -> pb.DispatchBeforeToolCallResponse:
    """Return the first block, or else the arguments as the last plugin rewrote them, with the
    reasons of the plugins that require approval.

    Each plugin gets the arguments as the plugins above it rewrote them. No plugin below a block is
    called. Raises NOT_FOUND for another run, and PluginFailed.
    """
    check_own_run(caller, request.event.session_id, request.event.run_id)
    current = event_pb2.BeforeToolCallEvent()
    current.CopyFrom(request.event)
    parsed: list[ToolCallAnswer] = []
    answers = deps.dispatcher.answers(
        caller.tenant_id, HookKind.BEFORE_TOOL_CALL, budget, current, request_builders.before_tool_call
    )
    async with aclosing(answers):
        async for access, answer in answers:
            decision = answer.decision
            size_bytes = current.ByteSize() + answer.ByteSize()
            arguments = await deps.workers.run(
                caller.tenant_id, size_bytes, rewritten_arguments, access, current, decision
            )
            parsed.append(
                ToolCallAnswer(
                    access.plugin.name, arguments, decision.block.reason, decision.require_approval.reason
                )
            )
            if parsed[-1].block_reason:
                break
            current.arguments_json = arguments or current.arguments_json
    return _render(merge_tool_call(parsed))


def _render(merged: MergedToolCall) -> pb.DispatchBeforeToolCallResponse:
    decision = decision_pb2.ToolCallDecision()
    if merged.block_reason:
        decision.block.reason = merged.block_reason
    elif merged.arguments_json:
        decision.rewrite.arguments_json = merged.arguments_json
    else:
        decision.proceed.SetInParent()
    return pb.DispatchBeforeToolCallResponse(
        decision=decision,
        decided_by=merged.decided_by,
        approval_reason=merged.approval_reason,
        rewritten_by=merged.rewritten_by,
    )
