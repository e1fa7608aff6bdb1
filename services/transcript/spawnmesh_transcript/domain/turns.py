"""Turns: what selection needs to know of an entry that a model reads, without its body."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from spawnmesh_transcript.domain.token_vocabularies import Measure


class Role(StrEnum):
    """The speaker of a turn; a NOTE is the mesh's own."""

    USER = "USER"
    ASSISTANT = "ASSISTANT"
    TOOL_RESULT = "TOOL_RESULT"
    BASH_EXECUTION = "BASH_EXECUTION"
    CUSTOM = "CUSTOM"
    NOTE = "NOTE"


class Turn(
    NamedTuple
):  # A tuple, since a context has thousands and a dataclass takes five times as long to make.
    """A message or a system note.

    `calls` are the ids of the tool calls it makes, and `answers` is the id of the call whose
    result it is, both trimmed. `counted_by` is the vocabulary of the stored count, and
    `size_bytes` is what is read of the body.
    """

    seq: int
    role: Role
    token_count: int
    calls: tuple[str, ...] = ()
    answers: str = ""
    is_synthetic: bool = False
    counted_by: str = "o200k_base"
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MissingResult:
    """Stands in place of a call's missing result."""

    call_id: str


@dataclass(frozen=True, slots=True)
class Group:
    """A turn with the results of its calls after it, in the order of the calls; all are read, or
    none.
    """

    head: Turn
    results: tuple[Turn | MissingResult, ...] = ()

    @property
    def members(self) -> tuple[Turn | MissingResult, ...]:
        return (self.head, *self.results)

    @property
    def has_results(self) -> bool:
        """Return whether a call of the group has a result."""
        return any(isinstance(result, Turn) for result in self.results)


def measured(turn: Turn, measure: Measure) -> Turn:
    """Return the turn with its count in the measure."""
    return turn._replace(token_count=measure.of(turn.token_count, turn.counted_by))


def calls_without_result(groups: Iterable[Group]) -> list[str]:
    """Return the ids of the calls in the groups that have no result, in order."""
    return [member.call_id for group in groups for member in group.members if not isinstance(member, Turn)]


def turns_of(groups: Iterable[Group]) -> Iterator[Turn]:
    """Return the turns of the groups, in order, without missing results."""
    return (member for group in groups for member in group.members if isinstance(member, Turn))
