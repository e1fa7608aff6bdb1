"""Values of the domain -> messages of the contract, and what of an event a plugin may see."""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.hook.v1 import decision_pb2, event_pb2, hook_service_pb2

from spawnmesh_hook.domain.decisions import MAX_REVISION_COUNT, Decision, Denial, FinalizeAnswer
from spawnmesh_hook.domain.plugins import Plugin
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
    )


def render_judgement(denial: Denial | None) -> hook_service_pb2.DispatchBeforeSpawnResponse:
    """The judgement about a spawn."""
    if denial is None:
        allowed = decision_pb2.SpawnDecision(allow=decision_pb2.Allow())
        return hook_service_pb2.DispatchBeforeSpawnResponse(decision=allowed)
    denied = decision_pb2.SpawnDecision(deny=decision_pb2.Deny(reason=denial.reason))
    return hook_service_pb2.DispatchBeforeSpawnResponse(decision=denied, decided_by=denial.plugin)


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


def spawn_event_for(plugin: Plugin, event: event_pb2.BeforeSpawnEvent) -> event_pb2.BeforeSpawnEvent:
    """What the plugin is told about a spawn: the task only when it sees content."""
    told = event_pb2.BeforeSpawnEvent()
    told.CopyFrom(event)
    if not plugin.sees_content:
        told.ClearField("task")
    return told


def finalize_event_for(
    plugin: Plugin, event: event_pb2.BeforeAgentFinalizeEvent, revision_count: int
) -> event_pb2.BeforeAgentFinalizeEvent:
    """What the plugin is told about a draft: its text only when it sees content; the counts are this service's own."""
    told = event_pb2.BeforeAgentFinalizeEvent()
    told.CopyFrom(event)
    told.revision_count = revision_count
    told.max_revision_count = MAX_REVISION_COUNT
    if not plugin.sees_content:
        told.ClearField("draft_text")
    return told
