"""One answer of a model, through the router."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.assignment import Assignment
from spawnmesh_runner.context import calls_of, text_of, without_calls
from spawnmesh_runner.domain import PEER_AWAY, backoff_seconds
from spawnmesh_runner.hooks import shape_prompt
from spawnmesh_runner.prompt import add_broken_attempt, build_prompt
from spawnmesh_runner.retry import jitter, while_transient

# The session service ends a run whose time is over, and says TIMED_OUT. A model call that gave up first would make it a failure instead.
_PAST_DEADLINE_SECONDS = 5.0


async def generate(assignment: Assignment, entries: Sequence[entry_pb2.Entry]) -> generation_pb2.Completion:
    """Asks the run's models in their order about the context. A stream that breaks is asked for anew once: nothing of it was kept.

    Raises MeshError: ALL_CANDIDATES_FAILED, MODEL_REFUSED, UNKNOWN_MODEL, STREAM_BROKEN, DEADLINE_EXCEEDED, PLUGIN_FAILED, or that of an absent
    peer.
    """
    request = await build_prompt(assignment, entries)
    await shape_prompt(assignment, request)
    try:
        return await while_transient(lambda: _generate_once(assignment, request), PEER_AWAY)
    except MeshError as error:
        if error.reason is not Reason.STREAM_BROKEN:
            raise
        add_broken_attempt(request, error)
    await asyncio.sleep(backoff_seconds(0, jitter=jitter()))
    return await while_transient(lambda: _generate_once(assignment, request), PEER_AWAY)


async def _generate_once(assignment: Assignment, request: pb.GenerateRequest) -> generation_pb2.Completion:
    mesh = assignment.mesh
    answers = mesh.model_router.stream(mesh.models.Generate, request, timeout_seconds=call_seconds(assignment))
    completion: generation_pb2.Completion | None = None
    async with aclosing(answers):
        async for answer in answers:
            for event in answer.events:
                if event.HasField("completion"):
                    completion = event.completion
    if completion is None:
        raise MeshError(Reason.STREAM_BROKEN, "the model's answer ended before it was whole")
    return completion


def heeded(completion: generation_pb2.Completion) -> message_pb2.Message:
    """What of the answer counts: of a model that refused, or that a filter stopped, no call is made.

    Raises MeshError MODEL_REFUSED where nothing is said beside them.
    """
    answer = completion.message
    if completion.stop_reason != generation_pb2.STOP_REASON_REFUSAL or not calls_of(answer):
        return answer
    if not text_of(answer):
        raise MeshError(Reason.MODEL_REFUSED, f"{answer.model} refused; the tool calls before that are not made")
    return without_calls(answer)


def is_cut_off(completion: generation_pb2.Completion) -> bool:
    """Whether the output limit was reached before anything was said and any call was whole.

    No other stop comes with nothing in it: the router takes that for a failure of the model.
    """
    answer = completion.message
    is_at_limit = completion.stop_reason == generation_pb2.STOP_REASON_LENGTH
    return is_at_limit and not calls_of(answer) and not text_of(answer).strip()


def call_seconds(assignment: Assignment) -> float:
    """What is left of the run, whatever this machine takes for the time, but no more than one call may take."""
    if not assignment.claimed.HasField("time_left"):
        return assignment.generate_timeout_seconds
    left = assignment.claimed.time_left.ToTimedelta().total_seconds() - (monotonic_seconds() - assignment.began)
    return min(max(left, 0.0) + _PAST_DEADLINE_SECONDS, assignment.generate_timeout_seconds)
