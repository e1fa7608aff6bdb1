"""What each hook asks of a plugin: request, answer, and how the answer is named in the log."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message
from grpc import aio
from spawnmesh.hook.v1 import event_pb2, observed_pb2
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh.hook.v1.compaction_pb2 import BeforeCompactionEvent
from spawnmesh.hook.v1.delivery_target_pb2 import DeliveryTargetEvent
from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import HookHandlerServiceStub
from spawnmesh_core.unmasking import NotRestorable

from spawnmesh_hook import visible
from spawnmesh_hook.answers import Failure, not_allowed
from spawnmesh_hook.domain.modifiers import is_object
from spawnmesh_hook.domain.plugins import HookKind, Viewer
from spawnmesh_hook.rewrites import rewritten_arguments

Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=Message)


def _anything(_answer: object) -> Failure | None:
    return None


@dataclass(frozen=True, slots=True)
class Question(Generic[Request, Answer]):
    """One call to make. `decision_of` names a valid answer in the log; `forbidden` tells what beyond the contract is wrong with one."""

    hook: HookKind
    session_id: str
    run_id: str
    method: Callable[[aio.Channel], aio.UnaryUnaryMultiCallable[Request, Answer]]
    request: Request
    answer_type: type[Answer]
    decision_of: Callable[[Answer], str]
    forbidden: Callable[[Answer], Failure | None] = _anything


def before_spawn(
    viewer: Viewer, event: event_pb2.BeforeSpawnEvent
) -> Question[pb.HandleBeforeSpawnRequest, pb.HandleBeforeSpawnResponse]:
    """May the session be spawned?"""
    return Question(
        hook=HookKind.BEFORE_SPAWN,
        session_id=event.session_id,
        run_id="",
        method=lambda channel: HookHandlerServiceStub(channel).HandleBeforeSpawn,
        request=pb.HandleBeforeSpawnRequest(event=visible.spawn(viewer, event)),
        answer_type=pb.HandleBeforeSpawnResponse,
        decision_of=lambda answer: answer.decision.WhichOneof("decision") or "",
    )


def before_agent_finalize(
    viewer: Viewer, event: event_pb2.BeforeAgentFinalizeEvent, revision_count: int
) -> Question[pb.HandleBeforeAgentFinalizeRequest, pb.HandleBeforeAgentFinalizeResponse]:
    """May the draft be final?"""
    return Question(
        hook=HookKind.BEFORE_AGENT_FINALIZE,
        session_id=event.session_id,
        run_id=event.run_id,
        method=lambda channel: HookHandlerServiceStub(channel).HandleBeforeAgentFinalize,
        request=pb.HandleBeforeAgentFinalizeRequest(event=visible.draft(viewer, event, revision_count)),
        answer_type=pb.HandleBeforeAgentFinalizeResponse,
        decision_of=lambda answer: answer.decision.WhichOneof("decision") or "",
    )


def before_model_resolve(
    viewer: Viewer, event: event_pb2.BeforeModelResolveEvent
) -> Question[pb.HandleBeforeModelResolveRequest, pb.HandleBeforeModelResolveResponse]:
    """Which model is to be asked first?"""
    return Question(
        hook=HookKind.BEFORE_MODEL_RESOLVE,
        session_id=event.session_id,
        run_id=event.run_id,
        method=lambda channel: HookHandlerServiceStub(channel).HandleBeforeModelResolve,
        request=pb.HandleBeforeModelResolveRequest(event=event),
        answer_type=pb.HandleBeforeModelResolveResponse,
        decision_of=lambda answer: "chosen" if answer.decision.model else "continue",
    )


def before_prompt_build(
    viewer: Viewer, event: event_pb2.BeforePromptBuildEvent
) -> Question[pb.HandleBeforePromptBuildRequest, pb.HandleBeforePromptBuildResponse]:
    """What is to be in the prompt?"""
    return Question(
        hook=HookKind.BEFORE_PROMPT_BUILD,
        session_id=event.session_id,
        run_id=event.run_id,
        method=lambda channel: HookHandlerServiceStub(channel).HandleBeforePromptBuild,
        request=pb.HandleBeforePromptBuildRequest(event=visible.prompt(viewer, event)),
        answer_type=pb.HandleBeforePromptBuildResponse,
        decision_of=lambda answer: "changed" if answer.decision.ByteSize() else "continue",
    )


def before_tool_call(
    viewer: Viewer, event: event_pb2.BeforeToolCallEvent
) -> Question[pb.HandleBeforeToolCallRequest, pb.HandleBeforeToolCallResponse]:
    """May the tool be called so?"""

    def forbidden(answer: pb.HandleBeforeToolCallResponse) -> Failure | None:
        if not answer.decision.HasField("rewrite"):
            return None
        if not viewer.plugin.sees_content:
            return not_allowed("decision.rewrite needs the grant CONVERSATION_ACCESS")
        if not is_object(answer.decision.rewrite.arguments_json):
            return not_allowed("decision.rewrite.arguments_json is no JSON object of reasonable depth and size")
        try:
            rewritten_arguments(viewer, event, answer.decision)
        except NotRestorable as error:
            return not_allowed(f"decision.rewrite.arguments_json {error}")
        return None

    return Question(
        hook=HookKind.BEFORE_TOOL_CALL,
        session_id=event.session_id,
        run_id=event.run_id,
        method=lambda channel: HookHandlerServiceStub(channel).HandleBeforeToolCall,
        request=pb.HandleBeforeToolCallRequest(event=visible.tool_call(viewer, event)),
        answer_type=pb.HandleBeforeToolCallResponse,
        decision_of=lambda answer: answer.decision.WhichOneof("decision") or "",
        forbidden=forbidden,
    )


def delivery_target(
    viewer: Viewer, event: DeliveryTargetEvent
) -> Question[pb.HandleDeliveryTargetRequest, pb.HandleDeliveryTargetResponse]:
    """Where is it to be told?"""
    return Question(
        hook=HookKind.DELIVERY_TARGET,
        session_id=event.session_id,
        run_id=event.run_id,
        method=lambda channel: HookHandlerServiceStub(channel).HandleDeliveryTarget,
        request=pb.HandleDeliveryTargetRequest(event=event),
        answer_type=pb.HandleDeliveryTargetResponse,
        decision_of=lambda answer: "chosen" if answer.decision.target else "continue",
    )


def before_compaction(
    viewer: Viewer, event: BeforeCompactionEvent
) -> Question[pb.HandleBeforeCompactionRequest, pb.HandleBeforeCompactionResponse]:
    """May it be summarized, and what is to be kept?"""

    def forbidden(answer: pb.HandleBeforeCompactionResponse) -> Failure | None:
        if answer.decision.compact.instructions and not viewer.plugin.changes_prompts:
            return not_allowed("decision.compact.instructions needs the grant PROMPT_INJECTION")
        return None

    return Question(
        hook=HookKind.BEFORE_COMPACTION,
        session_id=event.session_id,
        run_id=event.run_id,
        method=lambda channel: HookHandlerServiceStub(channel).HandleBeforeCompaction,
        request=pb.HandleBeforeCompactionRequest(event=visible.compaction(viewer, event)),
        answer_type=pb.HandleBeforeCompactionResponse,
        decision_of=lambda answer: answer.decision.WhichOneof("decision") or "",
        forbidden=forbidden,
    )


def observed(
    viewer: Viewer, hook: HookKind, event: observed_pb2.ObservedEvent
) -> Question[pb.HandleObservedEventRequest, pb.HandleObservedEventResponse]:
    """Hear this."""
    return Question(
        hook=hook,
        session_id=event.session_id,
        run_id=event.run_id,
        method=lambda channel: HookHandlerServiceStub(channel).HandleObservedEvent,
        request=pb.HandleObservedEventRequest(event=visible.observed(viewer, event)),
        answer_type=pb.HandleObservedEventResponse,
        decision_of=lambda _answer: "told",
    )
