"""DispatchBeforeCompaction: call the plugins for BEFORE_COMPACTION."""

from contextlib import aclosing

from spawnmesh.hook.v1 import compaction_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.compaction import CompactionAnswer, MergedCompaction, merge_compaction
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.operations import request_builders
from spawnmesh_hook.operations.time_budget import TimeBudget
from spawnmesh_hook.rpc.dependencies import Dependencies


async def dispatch_before_compaction(
    request: pb.DispatchBeforeCompactionRequest, caller: Caller, deps: Dependencies, budget: TimeBudget
) -> pb.DispatchBeforeCompactionResponse:
    """Return the first refusal, or else the joined instructions of all plugins.

    No plugin below a refusal is called. Only the delivery log is stored. Raises
    PluginFailed.
    """
    parsed: list[CompactionAnswer] = []
    answers = deps.dispatcher.answers(
        caller.tenant_id,
        HookKind.BEFORE_COMPACTION,
        budget,
        request.event,
        request_builders.before_compaction,
    )
    async with aclosing(answers):
        async for access, answer in answers:
            parsed.append(_parse(access.plugin.name, answer.decision))
            if parsed[-1].refusal:
                break
    return _render(merge_compaction(parsed))


def _parse(plugin: str, decision: pb.CompactionDecision) -> CompactionAnswer:
    return CompactionAnswer(plugin, decision.compact.instructions, decision.keep_whole.reason)


def _render(merged: MergedCompaction) -> pb.DispatchBeforeCompactionResponse:
    decision = pb.CompactionDecision()
    if merged.refusal:
        decision.keep_whole.reason = merged.refusal
    else:
        decision.compact.SetInParent()
        decision.compact.instructions = merged.instructions
    return pb.DispatchBeforeCompactionResponse(decision=decision, decided_by=merged.decided_by)
