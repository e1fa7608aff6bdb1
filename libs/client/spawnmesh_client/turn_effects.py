"""The part of a model request that says what the turn has done, and which attempts have failed.

A model that takes the turn over then knows what it must not do again.
"""

from collections.abc import Awaitable, Callable

from spawnmesh.model_router.v1.generation_pb2 import FAILOVER_REASON_UNKNOWN, FailoverReason
from spawnmesh.model_router.v1.model_router_service_pb2 import GenerateRequest
from spawnmesh.transcript.v1.entry_pb2 import ENTRY_KIND_MIRROR, EntryFilter
from spawnmesh_core.errors import MeshError

from spawnmesh_client.turn_progress import TurnProgress

HasEntryAfter = Callable[[int, EntryFilter], Awaitable[bool]]
"""Returns whether the transcript has a wanted entry after a seq."""


async def add_turn_effects(
    request: GenerateRequest, turn: TurnProgress, epoch: int, has_entry_after: HasEntryAfter
) -> None:
    """Add what the turn has done: the tools that it called, and whether a message to a person was
    mirrored into the transcript.

    If another runner began the turn, its attempt counts as a broken one.
    """
    if turn.answer_count:
        done = request.partial_execution
        done.tool_names.extend(turn.tool_names)
        mirrors = EntryFilter(kinds=[ENTRY_KIND_MIRROR])
        done.sent_to_person = await has_entry_after(turn.begin_seq, mirrors)
    if turn.epochs - {epoch}:
        request.earlier_attempts.add(model=turn.model or request.model, reason=FAILOVER_REASON_UNKNOWN)


def add_broken_attempt(request: GenerateRequest, error: MeshError) -> None:
    """Record in the request that a stream broke, behind the first attempt of its call."""
    facts = error.facts
    if facts.get("first_model", facts.get("model")) != facts.get("model"):
        request.earlier_attempts.add(
            model=facts["first_model"], reason=failover_reason(facts.get("first_failover_reason"))
        )
    request.earlier_attempts.add(
        model=facts.get("model", ""), reason=failover_reason(facts.get("failover_reason")), stream_broke=True
    )


def failover_reason(given: object) -> FailoverReason.ValueType:
    """Return the reason that the router names in a refusal; UNKNOWN for any other word."""
    name = f"FAILOVER_REASON_{given}"
    known = name in FailoverReason.keys()  # noqa: SIM118 - it is no mapping
    return FailoverReason.Value(name) if known else FAILOVER_REASON_UNKNOWN
