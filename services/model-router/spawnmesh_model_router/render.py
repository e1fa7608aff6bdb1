"""Events as messages of the contract."""

from collections.abc import Iterable

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.content.v1 import message_pb2, thinking_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb

from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.domain.outcome import Outcome
from spawnmesh_model_router.domain.reasons import CHAIN_STOPPING, FailoverReason
from spawnmesh_model_router.domain.retry import TRANSIENT
from spawnmesh_model_router.domain.thinking import ThinkingLevel
from spawnmesh_model_router.events import Attempt, AttemptFailed, AttemptStarted, Completed, Event
from spawnmesh_model_router.providers.answer import Answer, Call, TextPiece, Thought, Usage


def render_events(events: Iterable[Event]) -> pb.GenerateResponse:
    """What became known together."""
    return pb.GenerateResponse(events=map(_event, events))


def _event(event: Event) -> pb.GenerationEvent:
    match event:
        case AttemptStarted():
            return pb.GenerationEvent(attempt_started=_started(event))
        case TextPiece():
            return pb.GenerationEvent(text_delta=pb.TextDelta(text=event.text))
        case Call():
            return pb.GenerationEvent(tool_call=_tool_call(event))
        case AttemptFailed():
            return pb.GenerationEvent(attempt_failed=_attempt(event.attempt))
        case Completed():
            return pb.GenerationEvent(completion=_completion(event))


def render_classified(reason: FailoverReason) -> pb.ClassifyErrorResponse:
    """A judged failure."""
    return pb.ClassifyErrorResponse(
        reason=_reason(reason), is_transient=reason in TRANSIENT, stops_chain=reason in CHAIN_STOPPING
    )


def _started(started: AttemptStarted) -> pb.AttemptStarted:
    return pb.AttemptStarted(
        number=started.number,
        model=str(started.model),
        images=_images(started.images),
        prompt_image_detection_suppressed=started.prompt_image_detection_suppressed,
        told_of_partial_execution=started.told_of_partial_execution,
        thinking=render_thinking(started.thinking),
    )


def _completion(completed: Completed) -> generation_pb2.Completion:
    message = message_pb2.Message(
        role=message_pb2.ROLE_ASSISTANT,
        content=_blocks(completed.answer),
        model=str(completed.model),
        usage=_usage(completed.finished.usage),
    )
    return generation_pb2.Completion(
        message=message,
        stop_reason=generation_pb2.StopReason.Value(completed.finished.stop.value),
        verdicts=[render_verdict(model, outcome) for model, outcome in completed.outcomes],
        attempts=map(_attempt, completed.attempts),
        images=_images(completed.images),
        thinking=render_thinking(completed.thinking),
    )


def _blocks(answer: Answer) -> list[message_pb2.ContentBlock]:
    blocks: list[message_pb2.ContentBlock] = []
    for block in answer.blocks:
        match block:
            case TextPiece():
                blocks.append(message_pb2.ContentBlock(text=message_pb2.Text(text=block.text)))
            case Thought():
                thinking = message_pb2.Thinking(text=block.text, signature=block.signature)
                blocks.append(message_pb2.ContentBlock(thinking=thinking))
            case Call():
                blocks.append(message_pb2.ContentBlock(tool_call=_tool_call(block)))
    return blocks


def _tool_call(call: Call) -> message_pb2.ToolCall:
    return message_pb2.ToolCall(tool_call_id=call.call_id, name=call.name, block_json=call.block_json)


def _usage(usage: Usage) -> message_pb2.TokenUsage:
    return message_pb2.TokenUsage(
        input_token_count=usage.input,
        output_token_count=usage.output,
        cache_read_token_count=usage.cache_read,
        cache_write_token_count=usage.cache_write,
    )


def _attempt(attempt: Attempt) -> generation_pb2.Attempt:
    start, end = Timestamp(), Timestamp()
    start.FromDatetime(attempt.start_time)
    end.FromDatetime(attempt.end_time)
    return generation_pb2.Attempt(
        number=attempt.number,
        model=str(attempt.model),
        start_time=start,
        end_time=end,
        reason=_reason(attempt.reason),
        http_status=attempt.http_status,
    )


def render_verdict(model: str, outcome: Outcome) -> generation_pb2.CandidateVerdict:
    """What became of a candidate, or would."""
    verdict = generation_pb2.CandidateVerdict(
        model=model,
        verdict=generation_pb2.Verdict.Value(f"VERDICT_{outcome.kind}"),
        reason=_reason(outcome.reason),
        detail=outcome.detail,
        images=_images(outcome.images),
        thinking=render_thinking(outcome.thinking),
    )
    if outcome.until is not None:
        verdict.cooling_until_time.FromDatetime(outcome.until)
    return verdict


def render_thinking(level: ThinkingLevel | None) -> thinking_pb2.ThinkingLevel.ValueType:
    """The level as the contract has it."""
    return thinking_pb2.ThinkingLevel.Value(f"THINKING_LEVEL_{level.name if level is not None else 'UNSPECIFIED'}")


def _reason(reason: FailoverReason | None) -> generation_pb2.FailoverReason.ValueType:
    return generation_pb2.FailoverReason.Value(f"FAILOVER_REASON_{reason.value if reason else 'UNSPECIFIED'}")


def _images(outcome: ImageOutcome) -> generation_pb2.ImageOutcome.ValueType:
    if outcome is ImageOutcome.NO_IMAGES:
        return generation_pb2.IMAGE_OUTCOME_UNSPECIFIED
    return generation_pb2.ImageOutcome.Value(f"IMAGE_OUTCOME_{outcome.value}")
