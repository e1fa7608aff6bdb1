"""Stale messages: which ones a context shows by reference or condensed, and where the context
begins, so that successive contexts begin with the same bytes.

No state is kept between contexts. A turn's position is the number of turns and tokens of the
transcript up to it, which never changes, and limits that move with the transcript's end move in
whole steps.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spawnmesh_transcript.domain.selection import Selection
from spawnmesh_transcript.domain.turns import Group, Role, Turn

_TAIL_STEPS = 4
_CONTEXT_STEPS = 16  # More steps move the beginning more often, fewer drop more than necessary.


@dataclass(frozen=True, slots=True)
class TailLimits:
    """The size of the fresh tail: it ends at the limit that is reached first."""

    message_count: int = 64
    token_count: int = 24_000


def tail_limits(message_count: int, token_count: int) -> TailLimits:
    """Return the limits of the fresh tail, with the default for each one that is 0."""
    default = TailLimits()
    return TailLimits(message_count or default.message_count, token_count or default.token_count)


@dataclass(frozen=True, slots=True)
class TurnPositions:
    """Turns at the end of a transcript, without a gap, each with the number of turns before it.

    `stale_seq` is the newest turn that is no longer fresh, 0 if none of these is.
    """

    turns_before: Mapping[int, int]
    stale_seq: int


class Reference(NamedTuple):
    """The tokens of a body with references, and its length."""

    token_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Tiered:
    """The groups, with the tokens and the length of the reference for each turn in `stubbed`."""

    groups: tuple[Group, ...]
    stubbed: frozenset[int]


def position_turns(
    newest_first: Iterable[Turn], *, turn_count: int, token_count: int, limits: TailLimits
) -> TurnPositions:
    """Place the turns of a transcript with so many turns and tokens, superseded ones included."""
    turns = list(newest_first)
    stale_seq = newest_stale(turns, turn_count=turn_count, token_count=token_count, limits=limits)
    turns_before = {turn.seq: turn_count - index for index, turn in enumerate(turns, start=1)}
    return TurnPositions(turns_before, stale_seq)


def newest_stale(
    newest_first: Iterable[Turn], *, turn_count: int, token_count: int, limits: TailLimits
) -> int:
    """Return the newest turn that is no longer fresh, 0 if none of these is.

    Older turns are not examined.

    A turn is stale once a step of a limit has come on top of the limit, but not before the model
    has answered it.
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
    """Return two positions: answered turns up to either one, in turns or in tokens, are stale."""
    return (
        _step_down(turn_count - limits.message_count, max(1, limits.message_count // _TAIL_STEPS)),
        _step_down(token_count - limits.token_count, max(1, limits.token_count // _TAIL_STEPS)),
    )


def with_stubs(
    groups: Sequence[Group],
    references: Mapping[int, Reference],
    *,
    stale_seq: int,
    always: Turn | None = None,
) -> Tiered:
    """Show turns by reference if that has fewer tokens and their whole group is stale.

    The turn that is always included is shown complete.
    """
    stubbed: set[int] = set()
    tiered: list[Group] = []
    for group in groups:
        shorter = {
            turn.seq: reference
            for turn in group.members
            if isinstance(turn, Turn)
            and (reference := references.get(turn.seq))
            and reference.token_count < turn.token_count
        }
        if shorter and _newest_seq(group) <= stale_seq and not _is(group, always):
            stubbed |= shorter.keys()
            group = Group(
                _shortened(group.head, shorter),
                tuple(
                    _shortened(result, shorter) if isinstance(result, Turn) else result
                    for result in group.results
                ),
            )
        tiered.append(group)
    return Tiered(tuple(tiered), frozenset(stubbed))


def _shortened(turn: Turn, references: Mapping[int, Reference]) -> Turn:
    reference = references.get(turn.seq)
    return turn._replace(**reference._asdict()) if reference else turn


def begin_at_step(selection: Selection, positions: TurnPositions, *, always: Turn | None) -> Selection:
    """Return the part of the selection that begins at a whole step of turns, so that the beginning
    stays for some turns.

    A step is a power of two, so that a step of another size begins at the same place at least
    every other time. What is fresh, what is cut, and `always` stay in any case.
    """
    first = next((group for group in selection.groups if not _is(group, always)), None)
    if first is None or not selection.is_full:
        return selection
    turn_count = sum(len(group.results) + 1 for group in selection.groups)
    step = 1 << max(0, (turn_count // _CONTEXT_STEPS).bit_length() - 1)
    begin = -_step_down(-positions.turns_before[first.head.seq], step)
    kept = tuple(
        group
        for group in selection.groups
        if _is(group, always)
        or positions.turns_before[group.head.seq] >= begin
        or _newest_seq(group) > positions.stale_seq
        or any(member.seq in selection.cut for member in group.results if isinstance(member, Turn))
    )
    return Selection(kept, is_full=True, cut=selection.cut)


def _is(group: Group, turn: Turn | None) -> bool:
    return turn is not None and group.head.seq == turn.seq


def _newest_seq(group: Group) -> int:
    return max(member.seq for member in group.members if isinstance(member, Turn))


def _step_down(value: int, step: int) -> int:
    return value // step * step
