"""Pair each tool result with its call."""

from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh_transcript.domain.turns import Group, MissingResult, Role, Turn

_NO_CALLS: dict[str, Turn | None] = {}  # Shared: most of thousands of turns make no call.


@dataclass(frozen=True, slots=True)
class Paired:
    """Turns with every result after its call.

    `orphans` answer no call among the turns; `duplicates` answer a call that has its result
    already.
    """

    groups: tuple[Group, ...]
    orphans: tuple[Turn, ...]
    duplicates: tuple[Turn, ...]


def pair(turns: Sequence[Turn]) -> Paired:
    """Pair turns, given oldest first.

    A result belongs to the nearest call of its id before it, so that an id that a provider uses
    again names its own occurrence. The first real result counts, wherever it is; a synthetic one
    counts only if there is no real one. A call without any gets a MissingResult.
    """
    heads: list[Turn] = []
    results: list[dict[str, Turn | None]] = []  # For each head, the result of each of its calls.
    owner_of: dict[str, int] = {}  # For each call id, the newest head that makes it.
    orphans: list[Turn] = []
    duplicates: list[Turn] = []
    for turn in turns:
        if turn.role is not Role.TOOL_RESULT:
            if turn.calls:
                owner_of.update(dict.fromkeys(turn.calls, len(heads)))
            heads.append(turn)
            results.append(dict.fromkeys(turn.calls) if turn.calls else _NO_CALLS)
            continue
        owner = owner_of.get(turn.answers)
        if owner is None:
            orphans.append(turn)
            continue
        standing = results[owner][turn.answers]
        if standing is None:
            results[owner][turn.answers] = turn
        elif standing.is_synthetic and not turn.is_synthetic:
            results[owner][turn.answers] = turn
            duplicates.append(standing)
        else:
            duplicates.append(turn)
    groups = tuple(
        Group(
            head,
            tuple(result or MissingResult(call_id) for call_id, result in answered.items())
            if answered
            else (),
        )
        for head, answered in zip(heads, results, strict=True)
    )
    return Paired(groups, tuple(orphans), tuple(duplicates))
