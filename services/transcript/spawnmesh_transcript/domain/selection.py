"""Select the newest groups that fit a budget of tokens and one message of the transport."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spawnmesh_transcript.domain.turns import Group, Turn

MAX_CONTEXT_BYTES = 10 * 1024 * 1024
"""Bytes of a context's bodies, of the 16 MiB that a message has by default.

The rest is for a summary, for the other fields of the response, and for the system prompt and the
tools' schemas, which go to the router with it.
"""

ENTRY_BYTES = 256
"""Bytes of an entry's ids, hashes and writer, beside its body."""

MISSING_RESULT_BYTES = 1024
"""Upper bound for an entry in place of a missing result: its call id and tool name may have 256
bytes each.
"""


@dataclass(frozen=True, slots=True)
class Selection:
    """The groups to read, oldest first. `is_full` is set if something older did not fit."""

    groups: tuple[Group, ...]
    is_full: bool


def group_token_count(group: Group, *, missing_result_token_count: int) -> int:
    """Return the tokens of all that is read with the group."""
    return sum(
        member.token_count if isinstance(member, Turn) else missing_result_token_count
        for member in group.members
    )


def batches(
    turns: Sequence[Turn], *, max_count: int, max_bytes: int = MAX_CONTEXT_BYTES
) -> Iterator[Sequence[Turn]]:
    """Split the turns, in order, into batches within both limits, each with at least one turn."""
    begin = size_bytes = 0
    for end, turn in enumerate(turns):
        if begin < end and (end - begin == max_count or size_bytes + turn.size_bytes > max_bytes):
            yield turns[begin:end]
            begin, size_bytes = end, 0
        size_bytes += turn.size_bytes
    if begin < len(turns):
        yield turns[begin:]


def group_size_bytes(group: Group) -> int:
    """Return the bytes of the group in a response, or a few more."""
    return sum(
        ENTRY_BYTES + member.size_bytes if isinstance(member, Turn) else MISSING_RESULT_BYTES
        for member in group.members
    )


def select(
    groups: Sequence[Group],
    *,
    token_budget: int,
    always: Turn | None,
    missing_result_token_count: int,
    max_bytes: int = MAX_CONTEXT_BYTES,
) -> Selection:
    """Return the newest groups that fit, without a gap: the first one that does not fit ends the
    selection.

    `always` is included even if it alone exceeds the budget, and counts before the others; it may
    be older than all the groups.
    """
    remaining = token_budget - (always.token_count if always else 0)
    remaining_bytes = max_bytes - (ENTRY_BYTES + always.size_bytes if always else 0)
    chosen: list[Group] = []
    is_full = False
    has_always = always is None
    for group in reversed(groups):
        if always and group.head.seq == always.seq:
            chosen.append(group)
            has_always = True
            continue
        cost = group_token_count(group, missing_result_token_count=missing_result_token_count)
        size = group_size_bytes(group)
        if is_full or cost > remaining or size > remaining_bytes:
            is_full = True
            if has_always:
                break
            continue
        remaining -= cost
        remaining_bytes -= size
        chosen.append(group)
    if not has_always and always:
        chosen.append(Group(always))
    return Selection(tuple(reversed(chosen)), is_full)
