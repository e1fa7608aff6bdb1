"""Entries that a context leaves out, and the causes."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from spawnmesh_transcript.domain.turns import Group, Turn


class DropCause(StrEnum):
    """Spelled as in the contract."""

    BUDGET = "BUDGET"
    SUPERSEDED = "SUPERSEDED"
    UNMATCHED = "UNMATCHED"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """So many entries between two seqs, both inclusive."""

    first_seq: int
    last_seq: int
    entry_count: int
    cause: DropCause


def begin_of(groups: Iterable[Group], always: Turn | None) -> int:
    """Return the seq from which on the groups have everything that can be read, 0 if there is
    none.

    The message that is always included may stand before it.
    """
    heads = (group for group in groups if always is None or group.head.seq != always.seq)
    seqs = [member.seq for group in heads for member in group.members if isinstance(member, Turn)]
    return min(seqs, default=0)


def older(begin_seq: int, head_seq: int, dropped_count: int, *, covered_seq: int = 0) -> tuple[LeftOut, ...]:
    """Return the entries that did not fit: after the summary's sources and before the context's
    beginning.

    If the context has only the message that is always included, they reach up to the head.
    """
    if not dropped_count:
        return ()
    return (
        LeftOut(covered_seq + 1, begin_seq - 1 if begin_seq else head_seq, dropped_count, DropCause.BUDGET),
    )


def left_out(
    superseded: Collection[int], unmatched: Collection[int], *, begin_seq: int
) -> tuple[LeftOut, ...]:
    """Return what is missing from the context's beginning on, one item for each run of seqs,
    lowest first.
    """
    runs = [
        *_runs(superseded, DropCause.SUPERSEDED, begin_seq),
        *_runs(unmatched, DropCause.UNMATCHED, begin_seq),
    ]
    return tuple(sorted(runs, key=lambda run: run.first_seq))


def _runs(seqs: Iterable[int], cause: DropCause, begin: int) -> list[LeftOut]:
    runs: list[LeftOut] = []
    for seq in sorted(seq for seq in seqs if seq >= begin):
        if runs and runs[-1].last_seq == seq - 1:
            last = runs.pop()
            runs.append(LeftOut(last.first_seq, seq, last.entry_count + 1, cause))
        else:
            runs.append(LeftOut(seq, seq, 1, cause))
    return runs
