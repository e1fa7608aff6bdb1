"""The request to the model router: conversation, model candidates, and the turn's progress."""

from collections.abc import Sequence

from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_client.model_messages import messages_for_model
from spawnmesh_client.turn_progress import TurnProgress
from spawnmesh_core.errors import MeshError

from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.compaction import current_turn
from spawnmesh_runner.loop.named_images import find_named_images
from spawnmesh_runner.loop.transcript_pages import has_entry_after
from spawnmesh_runner.tools.calling.registry import declaration


async def build_prompt(assignment: Assignment, entries: Sequence[entry_pb2.Entry]) -> pb.GenerateRequest:
    """Build the request for the next answer.

    Raises the MeshError of an unavailable transcript service.

    If an earlier runner began the turn, the request reports its attempt as a broken one.
    """
    first, *others = assignment.claimed.models or [""]
    turn = await current_turn(assignment, entries)
    request = pb.GenerateRequest(
        model=first,
        fallback_models=others,
        system_prompt=assignment.system_prompt,
        messages=messages_for_model(entries),
        tools=[_declared(assignment, name) for name in assignment.tools],
        session_id=assignment.session_id,
        thinking=assignment.claimed.thinking,
    )
    request.named_images.extend(await find_named_images(assignment, entries))
    if assignment.claimed.agent.models:  # The agent's list is complete: no other model is asked.
        request.fallbacks.models.extend(others)
        del request.fallback_models[:]
    if turn.answer_count:
        request.partial_execution.tool_names.extend(turn.tool_names)
        request.partial_execution.sent_to_person = await _was_delivered(assignment, turn)
    if turn.epochs - {assignment.epoch}:
        request.earlier_attempts.add(model=turn.model or first, reason=generation_pb2.FAILOVER_REASON_UNKNOWN)
    return request


def add_broken_attempt(request: pb.GenerateRequest, error: MeshError) -> None:
    """Record in the request that a stream broke, behind the first attempt of its call."""
    facts = error.facts
    if facts.get("first_model", facts.get("model")) != facts.get("model"):
        request.earlier_attempts.add(
            model=facts["first_model"], reason=failover_reason(facts.get("first_failover_reason"))
        )
    request.earlier_attempts.add(
        model=facts.get("model", ""), reason=failover_reason(facts.get("failover_reason")), stream_broke=True
    )


def failover_reason(given: object) -> generation_pb2.FailoverReason.ValueType:
    """Return the reason that the router names in a refusal; UNKNOWN for any other word."""
    name = f"FAILOVER_REASON_{given}"
    known = name in generation_pb2.FailoverReason.keys()  # noqa: SIM118 - it is no mapping
    return generation_pb2.FailoverReason.Value(name) if known else generation_pb2.FAILOVER_REASON_UNKNOWN


def _declared(assignment: Assignment, name: str) -> generation_pb2.ToolDeclaration:
    tool = assignment.tools[name]
    declared = declaration(tool)
    declared.is_idempotent = tool.idempotent
    return declared


async def _was_delivered(assignment: Assignment, turn: TurnProgress) -> bool:
    """Return True if a message to a person was mirrored into the transcript during the turn."""
    mirrors = entry_pb2.EntryFilter(kinds=[entry_pb2.ENTRY_KIND_MIRROR])
    return await has_entry_after(assignment, turn.begin_seq, mirrors)
