"""Which large results a context has references of, and where it begins, so that contexts one after the other begin with the same bytes.

Nothing is remembered between contexts. Turns are placed by how many turns and tokens the transcript has up to them, which never changes,
and what moves with the transcript's end moves by whole steps of that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spawnmesh_transcript.domain.selection import Selection
from spawnmesh_transcript.domain.turns import Group, Role, Turn

_TAIL_STEPS = 4
_CONTEXT_STEPS = 16  # More keeps the beginning for fewer turns, fewer drops more than has to be.


@dataclass(frozen=True, slots=True)
class TailLimits:
    """How much of the end is fresh, whichever is reached first."""

    message_count: int = 64
    token_count: int = 24_000


@dataclass(frozen=True, slots=True)
class Placed:
    """Turns at the end of a transcript, without a gap, each with how many there are before it.

    `stale_seq` is the newest turn that is no longer fresh; 0 where none of these is.
    """

    turns_before: Mapping[int, int]
    stale_seq: int


class Reference(NamedTuple):
    """What a reference counts, and how long the body is that has it."""

    token_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Tiered:
    """The groups, where a result that a reference stands for counts what the reference does, and is as long. `stubbed` are the seqs of these."""

    groups: tuple[Group, ...]
    stubbed: frozenset[int]


def place(newest_first: Iterable[Turn], *, turn_count: int, token_count: int, limits: TailLimits) -> Placed:
    """Places the turns of a transcript that has so many turns and tokens, superseded ones among them."""
    turns = list(newest_first)
    stale_seq = newest_stale(turns, turn_count=turn_count, token_count=token_count, limits=limits)
    turns_before = {turn.seq: turn_count - place for place, turn in enumerate(turns, start=1)}
    return Placed(turns_before, stale_seq)


def newest_stale(newest_first: Iterable[Turn], *, turn_count: int, token_count: int, limits: TailLimits) -> int:
    """The newest turn that is no longer fresh; 0 where none of these is. Looks at no older one.

    A turn is stale once a step of a limit has come on top of the limit; never one that the model has not answered yet.
    """
    stale_turns, stale_tokens = stale_up_to(turn_count, token_count, limits)
    is_answered = False
    for turn in newest_first:
        if is_answered and (turn_count <= stale_turns or token_count <= stale_tokens):
            return turn.seq
        is_answered = is_answered or turn.role is Role.ASSISTANT
        turn_count -= 1
        token_count -= turn.token_count
    return 0


def stale_up_to(turn_count: int, token_count: int, limits: TailLimits) -> tuple[int, int]:
    """Turns up to which there are no more turns than this, or no more tokens, are stale once they are answered."""
    return (
        _step_down(turn_count - limits.message_count, max(1, limits.message_count // _TAIL_STEPS)),
        _step_down(token_count - limits.token_count, max(1, limits.token_count // _TAIL_STEPS)),
    )


def with_stubs(groups: Sequence[Group], references: Mapping[int, Reference], *, stale_seq: int) -> Tiered:
    """References for the results that have one, that get fewer tokens by it, and whose whole group is stale."""
    stubbed: set[int] = set()
    tiered: list[Group] = []
    for group in groups:
        shorter = {
            result.seq: reference
            for result in group.results
            if isinstance(result, Turn)
            and (reference := references.get(result.seq))
            and reference.token_count < result.token_count
        }
        if shorter and _newest_seq(group) <= stale_seq:
            stubbed |= shorter.keys()
            results = tuple(
                result._replace(**shorter[result.seq]._asdict())
                if isinstance(result, Turn) and result.seq in shorter
                else result
                for result in group.results
            )
            group = Group(group.head, results)
        tiered.append(group)
    return Tiered(tuple(tiered), frozenset(stubbed))


def begin_at_step(selection: Selection, placed: Placed, *, always: Turn | None) -> Selection:
    """Of what was selected, what begins at a whole step of turns, so that the beginning stays for some turns.

    A step is a power of two, so that a step of another size begins where this one does, at every other one at least. What is fresh, and
    `always`, stay in any case.
    """
    first = next((group for group in selection.groups if not _is(group, always)), None)
    if first is None or not selection.is_full:
        return selection
    turn_count = sum(len(group.results) + 1 for group in selection.groups)
    step = 1 << max(0, (turn_count // _CONTEXT_STEPS).bit_length() - 1)
    begin = -_step_down(-placed.turns_before[first.head.seq], step)
    kept = tuple(
        group
        for group in selection.groups
        if _is(group, always) or placed.turns_before[group.head.seq] >= begin or _newest_seq(group) > placed.stale_seq
    )
    return Selection(kept, is_full=True)


def _is(group: Group, turn: Turn | None) -> bool:
    return turn is not None and group.head.seq == turn.seq


def _newest_seq(group: Group) -> int:
    return max(member.seq for member in group.members if isinstance(member, Turn))


def _step_down(value: int, step: int) -> int:
    return value // step * step
