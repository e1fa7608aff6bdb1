"""Builds the request to a plugin's HookHandlerService for each hook.

A request consists of what can be pickled: a worker process builds that of a large event.
"""

from functools import partial

from spawnmesh.hook.v1 import event_pb2, observed_pb2
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh.hook.v1.compaction_pb2 import BeforeCompactionEvent
from spawnmesh.hook.v1.delivery_target_pb2 import DeliveryTargetEvent
from spawnmesh_core.unmasking import NotRestorable

from spawnmesh_hook.clients.handler_request import HandlerMethod, HandlerRequest
from spawnmesh_hook.domain.call_failures import CallFailure, not_permitted
from spawnmesh_hook.domain.deliveries import DeliveryDecision
from spawnmesh_hook.domain.modifiers import is_object
from spawnmesh_hook.domain.plugins import ContentAccess, HookKind
from spawnmesh_hook.operations import redaction
from spawnmesh_hook.operations.tool_call_rewrites import rewritten_arguments

_DecisionAnswer = (
    pb.HandleBeforeSpawnResponse
    | pb.HandleBeforeAgentFinalizeResponse
    | pb.HandleBeforeToolCallResponse
    | pb.HandleBeforeCompactionResponse
)
FinalizeRequest = HandlerRequest[pb.HandleBeforeAgentFinalizeRequest, pb.HandleBeforeAgentFinalizeResponse]


def before_spawn(
    access: ContentAccess, event: event_pb2.BeforeSpawnEvent
) -> HandlerRequest[pb.HandleBeforeSpawnRequest, pb.HandleBeforeSpawnResponse]:
    """Ask whether the session may be spawned."""
    return HandlerRequest(
        hook=HookKind.BEFORE_SPAWN,
        session_id=event.session_id,
        run_id="",
        method=HandlerMethod("HandleBeforeSpawn"),
        request=pb.HandleBeforeSpawnRequest(event=redaction.redact_spawn(access, event)),
        answer_type=pb.HandleBeforeSpawnResponse,
        decision_of=_chosen_decision,
    )


def before_agent_finalize(
    access: ContentAccess, event: event_pb2.BeforeAgentFinalizeEvent, revision_count: int
) -> FinalizeRequest:
    """Ask whether the draft may be final."""
    return HandlerRequest(
        hook=HookKind.BEFORE_AGENT_FINALIZE,
        session_id=event.session_id,
        run_id=event.run_id,
        method=HandlerMethod("HandleBeforeAgentFinalize"),
        request=pb.HandleBeforeAgentFinalizeRequest(
            event=redaction.redact_draft(access, event, revision_count)
        ),
        answer_type=pb.HandleBeforeAgentFinalizeResponse,
        decision_of=_chosen_decision,
    )


def before_model_resolve(
    access: ContentAccess, event: event_pb2.BeforeModelResolveEvent
) -> HandlerRequest[pb.HandleBeforeModelResolveRequest, pb.HandleBeforeModelResolveResponse]:
    """Ask which model to call first."""
    return HandlerRequest(
        hook=HookKind.BEFORE_MODEL_RESOLVE,
        session_id=event.session_id,
        run_id=event.run_id,
        method=HandlerMethod("HandleBeforeModelResolve"),
        request=pb.HandleBeforeModelResolveRequest(event=event),
        answer_type=pb.HandleBeforeModelResolveResponse,
        decision_of=_model_decision,
    )


def before_prompt_build(
    access: ContentAccess, event: event_pb2.BeforePromptBuildEvent
) -> HandlerRequest[pb.HandleBeforePromptBuildRequest, pb.HandleBeforePromptBuildResponse]:
    """Ask for changes of the prompt."""
    return HandlerRequest(
        hook=HookKind.BEFORE_PROMPT_BUILD,
        session_id=event.session_id,
        run_id=event.run_id,
        method=HandlerMethod("HandleBeforePromptBuild"),
        request=pb.HandleBeforePromptBuildRequest(event=redaction.redact_prompt(access, event)),
        answer_type=pb.HandleBeforePromptBuildResponse,
        decision_of=_prompt_decision,
    )


def before_tool_call(
    access: ContentAccess, event: event_pb2.BeforeToolCallEvent
) -> HandlerRequest[pb.HandleBeforeToolCallRequest, pb.HandleBeforeToolCallResponse]:
    """Ask whether to call the tool with these arguments."""
    return HandlerRequest(
        hook=HookKind.BEFORE_TOOL_CALL,
        session_id=event.session_id,
        run_id=event.run_id,
        method=HandlerMethod("HandleBeforeToolCall"),
        request=pb.HandleBeforeToolCallRequest(event=redaction.redact_tool_call(access, event)),
        answer_type=pb.HandleBeforeToolCallResponse,
        decision_of=_chosen_decision,
        check_permitted=partial(_check_rewrite, access, event),
    )


def delivery_target(
    access: ContentAccess, event: DeliveryTargetEvent
) -> HandlerRequest[pb.HandleDeliveryTargetRequest, pb.HandleDeliveryTargetResponse]:
    """Ask where to deliver the end of the session."""
    return HandlerRequest(
        hook=HookKind.DELIVERY_TARGET,
        session_id=event.session_id,
        run_id=event.run_id,
        method=HandlerMethod("HandleDeliveryTarget"),
        request=pb.HandleDeliveryTargetRequest(event=event),
        answer_type=pb.HandleDeliveryTargetResponse,
        decision_of=_target_decision,
    )


def before_compaction(
    access: ContentAccess, event: BeforeCompactionEvent
) -> HandlerRequest[pb.HandleBeforeCompactionRequest, pb.HandleBeforeCompactionResponse]:
    """Ask whether to summarize, and what the summary has to keep."""
    return HandlerRequest(
        hook=HookKind.BEFORE_COMPACTION,
        session_id=event.session_id,
        run_id=event.run_id,
        method=HandlerMethod("HandleBeforeCompaction"),
        request=pb.HandleBeforeCompactionRequest(event=redaction.redact_compaction(access, event)),
        answer_type=pb.HandleBeforeCompactionResponse,
        decision_of=_chosen_decision,
        check_permitted=partial(_check_instructions, access),
    )


def observed(
    access: ContentAccess, hook: HookKind, event: observed_pb2.ObservedEvent
) -> HandlerRequest[pb.HandleObservedEventRequest, pb.HandleObservedEventResponse]:
    """Notify an observer of an event."""
    return HandlerRequest(
        hook=hook,
        session_id=event.session_id,
        run_id=event.run_id,
        method=HandlerMethod("HandleObservedEvent"),
        request=pb.HandleObservedEventRequest(event=redaction.redact_observed(access, event)),
        answer_type=pb.HandleObservedEventResponse,
        decision_of=_told,
    )


def _check_rewrite(
    access: ContentAccess, event: event_pb2.BeforeToolCallEvent, answer: pb.HandleBeforeToolCallResponse
) -> CallFailure | None:
    if not answer.decision.HasField("rewrite"):
        return None
    if not access.plugin.sees_content:
        return not_permitted("decision.rewrite needs the grant CONVERSATION_ACCESS")
    if not is_object(answer.decision.rewrite.arguments_json):
        return not_permitted(
            "decision.rewrite.arguments_json is not a JSON object within the bounds of depth and size"
        )
    try:
        rewritten_arguments(access, event, answer.decision)
    except NotRestorable as error:
        return not_permitted(f"decision.rewrite.arguments_json {error}")
    return None


def _check_instructions(
    access: ContentAccess, answer: pb.HandleBeforeCompactionResponse
) -> CallFailure | None:
    if answer.decision.compact.instructions and not access.plugin.changes_prompts:
        return not_permitted("decision.compact.instructions needs the grant PROMPT_INJECTION")
    return None


def _chosen_decision(answer: _DecisionAnswer) -> DeliveryDecision:
    return DeliveryDecision(answer.decision.WhichOneof("decision") or "")


def _model_decision(answer: pb.HandleBeforeModelResolveResponse) -> DeliveryDecision:
    return DeliveryDecision.CHOSEN if answer.decision.model else DeliveryDecision.CONTINUE


def _prompt_decision(answer: pb.HandleBeforePromptBuildResponse) -> DeliveryDecision:
    return DeliveryDecision.CHANGED if answer.decision.ByteSize() else DeliveryDecision.CONTINUE


def _target_decision(answer: pb.HandleDeliveryTargetResponse) -> DeliveryDecision:
    return DeliveryDecision.CHOSEN if answer.decision.target else DeliveryDecision.CONTINUE


def _told(_answer: pb.HandleObservedEventResponse) -> DeliveryDecision:
    return DeliveryDecision.TOLD
