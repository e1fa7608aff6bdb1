"""Values of the domain -> messages of the contract."""

import base64
from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.hook.v1 import decision_pb2, event_pb2, hook_service_pb2, run_hook_service_pb2
from spawnmesh.hook.v1.compaction_pb2 import CompactionDecision, DispatchBeforeCompactionResponse
from spawnmesh.hook.v1.delivery_target_pb2 import DeliveryTargetDecision, DispatchDeliveryTargetResponse

from spawnmesh_hook.domain.compaction import MergedCompaction
from spawnmesh_hook.domain.decisions import MAX_REVISION_COUNT, Decision, Denial, FinalizeAnswer
from spawnmesh_hook.domain.modifiers import MergedPrompt, MergedToolCall, ModelChoice, TargetChoice
from spawnmesh_hook.domain.native import answer_to
from spawnmesh_hook.domain.plugins import HookKind, Plugin
from spawnmesh_hook.store import Delivery


def render_plugin(plugin: Plugin) -> hook_service_pb2.Plugin:
    """The plugin as it is registered."""
    timeout = Duration()
    timeout.FromTimedelta(plugin.timeout)
    return hook_service_pb2.Plugin(
        name=plugin.name,
        endpoint=plugin.endpoint,
        hooks=[event_pb2.HookKind.Value(f"HOOK_KIND_{hook}") for hook in plugin.hooks],
        priority=plugin.priority,
        timeout=timeout,
        failure_policy=hook_service_pb2.FailurePolicy.Value(f"FAILURE_POLICY_{plugin.failure_policy}"),
        grants=[hook_service_pb2.Grant.Value(f"GRANT_{grant}") for grant in plugin.grants],
        max_concurrent_calls=plugin.max_concurrent_calls,
        paused=plugin.paused,
        bundled=plugin.bundled,
    )


def render_delivery(delivery: Delivery) -> hook_service_pb2.Delivery:
    """One row of the log."""
    start_time, latency = Timestamp(), Duration()
    start_time.FromDatetime(delivery.start_time)
    latency.FromTimedelta(delivery.latency)
    return hook_service_pb2.Delivery(
        plugin=delivery.plugin,
        hook=event_pb2.HookKind.Value(f"HOOK_KIND_{delivery.hook}"),
        session_id=delivery.session_id,
        run_id=delivery.run_id,
        start_time=start_time,
        latency=latency,
        decision=delivery.decision,
        error=delivery.error,
        attempt=delivery.attempt,
    )


def render_judgement(denial: Denial | None) -> hook_service_pb2.DispatchBeforeSpawnResponse:
    """The judgement about a spawn."""
    if denial is None:
        allowed = decision_pb2.SpawnDecision(allow=decision_pb2.Allow())
        return hook_service_pb2.DispatchBeforeSpawnResponse(decision=allowed)
    denied = decision_pb2.SpawnDecision(deny=decision_pb2.Deny(reason=denial.reason))
    return hook_service_pb2.DispatchBeforeSpawnResponse(decision=denied, decided_by=denial.plugin)


def render_target(choice: TargetChoice) -> DispatchDeliveryTargetResponse:
    """The choice of a delivery target."""
    return DispatchDeliveryTargetResponse(
        decision=DeliveryTargetDecision(target=choice.target), decided_by=choice.plugin
    )


def render_compaction(merged: MergedCompaction) -> DispatchBeforeCompactionResponse:
    """The judgement about a compaction."""
    decision = CompactionDecision()
    if merged.refusal:
        decision.keep_whole.reason = merged.refusal
    else:
        decision.compact.SetInParent()
        decision.compact.instructions = merged.instructions
    return DispatchBeforeCompactionResponse(decision=decision, decided_by=merged.decided_by)


def render_decision(decision: Decision) -> hook_service_pb2.DispatchBeforeAgentFinalizeResponse:
    """The decision about a draft."""
    message = decision_pb2.FinalizeDecision()
    match decision.answer:
        case FinalizeAnswer.CONTINUE:
            getattr(message, "continue").SetInParent()
        case FinalizeAnswer.REVISE:
            message.revise.reason = decision.reason
        case FinalizeAnswer.FINALIZE:
            message.finalize.SetInParent()
            message.finalize.reason = decision.reason
    return hook_service_pb2.DispatchBeforeAgentFinalizeResponse(
        decision=message,
        decided_by=decision.decided_by,
        revision_number=decision.revision_number,
        max_revision_count=MAX_REVISION_COUNT,
        capped=decision.capped,
    )


def render_page(deliveries: Sequence[Delivery], page_size: int) -> hook_service_pb2.ListDeliveriesResponse:
    """A page, with the token of the next one where it is full."""
    token = ""
    if len(deliveries) == page_size:
        last = deliveries[-1]
        token = base64.urlsafe_b64encode(f"{last.start_time.isoformat()} {last.delivery_id}".encode()).decode()
    return hook_service_pb2.ListDeliveriesResponse(deliveries=map(render_delivery, deliveries), next_page_token=token)


def render_native(decision: Decision) -> hook_service_pb2.RelayNativeStopResponse:
    """What the harness is answered."""
    return hook_service_pb2.RelayNativeStopResponse(
        output=answer_to(decision), revision_number=decision.revision_number, capped=decision.capped
    )


def render_hooks(hooks: Sequence[HookKind]) -> run_hook_service_pb2.ListActiveHooksResponse:
    """The hooks that anybody listens to."""
    kinds = [event_pb2.HookKind.Value(f"HOOK_KIND_{hook}") for hook in hooks]
    return run_hook_service_pb2.ListActiveHooksResponse(hooks=kinds)


def render_model(choice: ModelChoice) -> run_hook_service_pb2.DispatchBeforeModelResolveResponse:
    """The choice of a model."""
    return run_hook_service_pb2.DispatchBeforeModelResolveResponse(
        decision=decision_pb2.ModelDecision(model=choice.model), decided_by=choice.plugin
    )


def render_prompt(merged: MergedPrompt) -> run_hook_service_pb2.DispatchBeforePromptBuildResponse:
    """What is made of a prompt."""
    decision = decision_pb2.PromptDecision(system_prompt=merged.system_prompt, context=merged.context)
    if merged.tools is not None:
        decision.tools.SetInParent()
        decision.tools.names.extend(merged.tools)
    return run_hook_service_pb2.DispatchBeforePromptBuildResponse(decision=decision, decided_by=merged.decided_by)


def render_tool_call(merged: MergedToolCall) -> run_hook_service_pb2.DispatchBeforeToolCallResponse:
    """What becomes of a tool call."""
    decision = decision_pb2.ToolCallDecision()
    if merged.block_reason:
        decision.block.reason = merged.block_reason
    elif merged.arguments_json:
        decision.rewrite.arguments_json = merged.arguments_json
    else:
        decision.proceed.SetInParent()
    return run_hook_service_pb2.DispatchBeforeToolCallResponse(decision=decision, decided_by=merged.decided_by)
