"""What the rules need to know of an entry that a model reads; never its body."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from spawnmesh_transcript.domain.families import Measure


class Role(StrEnum):
    """Who speaks; a NOTE is the mesh's own."""

    USER = "USER"
    ASSISTANT = "ASSISTANT"
    TOOL_RESULT = "TOOL_RESULT"
    BASH_EXECUTION = "BASH_EXECUTION"
    CUSTOM = "CUSTOM"
    NOTE = "NOTE"


class Turn(NamedTuple):  # A tuple, since a context has thousands and a dataclass takes five times as long to make.
    """A message or a system note. `calls` are the tool calls it makes; `answers` is the one it is the result of; both trimmed.

    `counted_by` is the vocabulary of the count that is stored, `size_bytes` what is read of its body.
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
    """Stands where the result of a call should be."""

    call_id: str


@dataclass(frozen=True, slots=True)
class Group:
    """A turn with the results of its calls behind it, in the order of the calls; they are read together or not at all."""

    head: Turn
    results: tuple[Turn | MissingResult, ...] = ()

    @property
    def members(self) -> tuple[Turn | MissingResult, ...]:
        return (self.head, *self.results)


def measured(turn: Turn, measure: Measure) -> Turn:
    """The turn with its count in the measure."""
    return turn._replace(token_count=measure.of(turn.token_count, turn.counted_by))


def turns_of(groups: Iterable[Group]) -> Iterator[Turn]:
    """What is there of the groups, in their order."""
    return (member for group in groups for member in group.members if isinstance(member, Turn))
