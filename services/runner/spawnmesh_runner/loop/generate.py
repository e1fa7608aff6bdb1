"""Generate one answer of a model through the model router."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_client.drafts import Spoken
from spawnmesh_client.turn_effects import add_broken_attempt
from spawnmesh_client.turn_messages import calls_of, text_of, without_calls
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import TRANSIENT_FACT, MeshError, transient_fact
from spawnmesh_core.reasons import Reason
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from spawnmesh_runner.clients.retry import backoff, mesh_error_of, retry_transient
from spawnmesh_runner.domain.failure import ModelCallTimedOut
from spawnmesh_runner.domain.reasons import PEER_UNAVAILABLE
from spawnmesh_runner.loop.assignment import Assignment, seconds_left
from spawnmesh_runner.loop.hooks import dispatch_prompt_hooks
from spawnmesh_runner.loop.prompt import build_prompt

# The session service ends a run whose time is over, with TIMED_OUT. If the model call gave up
# first, the run would end with a failure instead.
_PAST_DEADLINE_SECONDS = 5.0

# The router waits for cooldowns and retries within the call. An attempt that begins later than in
# this share of the call's time has too little left for its answer, through no fault of the model.
_LATE_SHARE = 0.1

_USED = (
    "input_token_count",
    "output_token_count",
    "cache_read_token_count",
    "cache_write_token_count",
    "cost_micros",
)


async def prepare_prompt(assignment: Assignment, entries: Sequence[entry_pb2.Entry]) -> pb.GenerateRequest:
    """Return the request for the next answer, as plugins changed it.

    Raises MeshError: PLUGIN_FAILED, or the error of an unavailable peer.
    """
    request = await build_prompt(assignment, entries)
    await dispatch_prompt_hooks(assignment, request)
    return request


async def generate(
    assignment: Assignment, request: pb.GenerateRequest, spoken: Spoken
) -> generation_pb2.Completion:
    """Ask the run's models for the next answer, in their order. `spoken` gets it as it comes.

    If the stream breaks, call again: once for each candidate, and at least once. Only the usage of
    a broken stream is kept, and the request reports the attempt. Raises MeshError:
    ALL_CANDIDATES_FAILED, MODEL_REFUSED, UNKNOWN_MODEL, STREAM_BROKEN, SESSION_BUDGET_EXCEEDED, or
    the error of an unavailable peer; and ModelCallTimedOut.
    """
    attempts = AsyncRetrying(
        retry=retry_if_exception(_is_broken_stream),
        stop=_is_last_broken_stream,
        wait=backoff,
        before_sleep=lambda state: add_broken_attempt(request, mesh_error_of(state)),
        reraise=True,
        sleep=asyncio.sleep,
    )
    return await attempts(
        retry_transient, lambda: _generate_once(assignment, request, spoken), PEER_UNAVAILABLE
    )


def _is_last_broken_stream(state: RetryCallState) -> bool:
    """Return whether the streams of all candidates broke, and at least two streams did.

    The router calls a candidate whose stream broke after the others.
    """
    candidates = sum(name.startswith("candidate_") for name in mesh_error_of(state).facts)
    return state.attempt_number >= max(candidates, 2)


def _is_broken_stream(error: BaseException) -> bool:
    return isinstance(error, MeshError) and error.reason is Reason.STREAM_BROKEN


async def _generate_once(
    assignment: Assignment, request: pb.GenerateRequest, spoken: Spoken
) -> generation_pb2.Completion:
    peers = assignment.peers
    seconds = model_call_seconds(assignment)
    answers = peers.model_router.stream(peers.models.Generate, request, timeout_seconds=seconds)
    late_at = monotonic_seconds() + _LATE_SHARE * seconds
    had_its_time, model = False, ""
    completion: generation_pb2.Completion | None = None
    try:
        async with aclosing(answers):
            async for answer in answers:
                for event in answer.events:
                    spoken.take(event)
                    assignment.run_events.add_failed_attempt(event)
                    if event.HasField("attempt_started"):
                        model = event.attempt_started.model
                        had_its_time = monotonic_seconds() < late_at
                    if event.HasField("completion"):
                        completion = event.completion
    except MeshError as error:
        assignment.add_usage(_usage_in(error))
        assignment.run_events.add_broken_stream(error, model)
        if error.reason is Reason.DEADLINE_EXCEEDED and had_its_time:
            assignment.run_events.add_failure(model, generation_pb2.FAILOVER_REASON_TIMEOUT)
            raise ModelCallTimedOut(error) from error
        raise
    if completion is None:
        raise MeshError(
            Reason.STREAM_BROKEN,
            "the model's answer ended before it was complete",
            facts={TRANSIENT_FACT: transient_fact(True)},
        )
    assignment.add_usage(completion.failed_usage)
    return completion


def _usage_in(error: MeshError) -> message_pb2.TokenUsage:
    """Return the tokens and the cost of the failed attempts, as the router's error reports them."""
    usage = message_pb2.TokenUsage()
    for name in _USED:
        count = error.facts.get(f"used_{name}", "")
        if count.isdecimal():
            setattr(usage, name, int(count))
    return usage


def without_refused_calls(completion: generation_pb2.Completion) -> message_pb2.Message:
    """Return the answer, without its tool calls if the model refused or a filter stopped it.

    Raises MeshError MODEL_REFUSED if nothing but calls is left.
    """
    answer = completion.message
    if completion.stop_reason != generation_pb2.STOP_REASON_REFUSAL or not calls_of(answer):
        return answer
    if not text_of(answer):
        raise MeshError(
            Reason.MODEL_REFUSED, f"{answer.model} refused; the tool calls before that are not made"
        )
    return without_calls(answer)


def is_cut_off(completion: generation_pb2.Completion) -> bool:
    """Return True if the answer reached the output limit before a text or a complete call.

    With any other stop reason an empty answer is a failed model, which the router handles.
    """
    answer = completion.message
    is_at_limit = completion.stop_reason == generation_pb2.STOP_REASON_LENGTH
    return is_at_limit and not calls_of(answer) and not text_of(answer).strip()


def model_call_seconds(assignment: Assignment) -> float:
    """Return a model call's timeout: what is left of the run, within `generate_timeout_seconds`."""
    left = seconds_left(assignment.claimed, assignment.start_seconds)
    return min(left + _PAST_DEADLINE_SECONDS, assignment.generate_timeout_seconds)
