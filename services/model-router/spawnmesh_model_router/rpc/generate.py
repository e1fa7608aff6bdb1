"""Generate: call a model, with failover, and stream its answer."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_model_router.domain.answer import (
    Answer,
    CallPiece,
    TextPiece,
    Thought,
    ThoughtPiece,
    ToolCall,
)
from spawnmesh_model_router.domain.charges import ChargedUsage
from spawnmesh_model_router.domain.events import Attempt, AttemptFailed, AttemptStarted, Completed, Event
from spawnmesh_model_router.operations.budget_guard import generate_within_budget
from spawnmesh_model_router.operations.event_batches import batch_events
from spawnmesh_model_router.rpc.dependencies import Dependencies
from spawnmesh_model_router.rpc.generate_messages import parse_generate_request
from spawnmesh_model_router.rpc.messages import (
    render_images,
    render_reason,
    render_thinking,
    render_verdict,
)


async def generate(
    request: pb.GenerateRequest,
    caller: Caller,
    remaining_seconds: float | None,
    deps: Dependencies,
) -> AsyncGenerator[pb.GenerateResponse, None]:
    """Stream the events of the call, in batches. The last event is the completion.

    Raises MeshError INVALID_REQUEST, NOT_FOUND, UNKNOWN_MODEL, UNKNOWN_TENANT, BUDGET_EXCEEDED,
    SESSION_BUDGET_EXCEEDED, RUN_LEASE_LOST and DEPENDENCY_UNAVAILABLE before any provider is
    called; MODEL_REFUSED, STREAM_BROKEN and ALL_CANDIDATES_FAILED after that.
    """
    policy = await deps.policies.get(caller.tenant_id)
    chain = deps.chain
    deadline = chain.deadline_after(remaining_seconds)
    routing, content = await parse_generate_request(
        request, caller, policy, chain.config, deadline, chain.threads.read_schemas
    )
    events = generate_within_budget(chain, deps.budgets, deps.run_budgets, deps.usage, routing, content)
    render = partial(_render_event, price_version=chain.config.price_version)
    async with aclosing(batch_events(events)) as batches:
        async for batch in batches:
            yield pb.GenerateResponse(events=map(render, batch))


def _render_event(event: Event, *, price_version: str) -> pb.GenerationEvent:
    match event:
        case AttemptStarted():
            return pb.GenerationEvent(attempt_started=_render_started(event))
        case TextPiece():
            return pb.GenerationEvent(text_delta=pb.TextDelta(text=event.text))
        case ThoughtPiece():
            return pb.GenerationEvent(thinking_delta=pb.ThinkingDelta(text=event.text))
        case CallPiece():
            return pb.GenerationEvent(tool_call_delta=_render_call_piece(event))
        case ToolCall():
            return pb.GenerationEvent(tool_call=_render_tool_call(event))
        case AttemptFailed():
            return pb.GenerationEvent(attempt_failed=_render_attempt(event.attempt))
        case Completed():
            return pb.GenerationEvent(completion=_render_completion(event, price_version))


def _render_started(started: AttemptStarted) -> pb.AttemptStarted:
    return pb.AttemptStarted(
        number=started.number,
        model=str(started.model),
        images=render_images(started.images),
        prompt_image_detection_suppressed=started.prompt_image_detection_suppressed,
        told_of_partial_execution=started.mentions_partial_execution,
        thinking=render_thinking(started.thinking),
    )


def _render_completion(completed: Completed, price_version: str) -> generation_pb2.Completion:
    message = message_pb2.Message(
        role=message_pb2.ROLE_ASSISTANT,
        content=_render_blocks(completed.answer),
        model=str(completed.model),
        usage=_render_usage(completed.charged, price_version),
        image_provider=completed.image_provider,
    )
    return generation_pb2.Completion(
        message=message,
        stop_reason=generation_pb2.StopReason.Value(completed.finished.stop.value),
        verdicts=[render_verdict(model, outcome) for model, outcome in completed.outcomes],
        attempts=map(_render_attempt, completed.attempts),
        images=render_images(completed.images),
        thinking=render_thinking(completed.thinking),
        failed_usage=_render_usage(completed.failed_usage, price_version),
    )


def _render_blocks(answer: Answer) -> list[message_pb2.ContentBlock]:
    blocks: list[message_pb2.ContentBlock] = []
    for block in answer.blocks:
        match block:
            case TextPiece():
                blocks.append(message_pb2.ContentBlock(text=message_pb2.Text(text=block.text)))
            case Thought():
                thinking = message_pb2.Thinking(text=block.text, signature=block.signature)
                blocks.append(message_pb2.ContentBlock(thinking=thinking))
            case ToolCall():
                blocks.append(message_pb2.ContentBlock(tool_call=_render_tool_call(block)))
    return blocks


def _render_tool_call(call: ToolCall) -> message_pb2.ToolCall:
    return message_pb2.ToolCall(tool_call_id=call.call_id, name=call.name, block_json=call.block_json)


def _render_call_piece(piece: CallPiece) -> pb.ToolCallDelta:
    return pb.ToolCallDelta(
        tool_call_id=piece.call_id,
        name=piece.name,
        arguments=piece.arguments,
        begins_call=piece.begins_call,
    )


def _render_usage(charged: ChargedUsage, price_version: str) -> message_pb2.TokenUsage:
    usage = charged.usage
    return message_pb2.TokenUsage(
        input_token_count=usage.input,
        output_token_count=usage.output,
        cache_read_token_count=usage.cache_read,
        cache_write_token_count=usage.cache_write,
        cost_micros=charged.cost_micros,
        price_version=price_version,
    )


def _render_attempt(attempt: Attempt) -> generation_pb2.Attempt:
    return generation_pb2.Attempt(
        number=attempt.number,
        model=str(attempt.model),
        start_time=timestamp_of(attempt.start_time),
        end_time=timestamp_of(attempt.end_time),
        reason=render_reason(attempt.reason),
        http_status=attempt.http_status,
    )
