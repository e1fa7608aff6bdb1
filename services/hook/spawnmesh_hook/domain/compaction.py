"""Merge the answers of several plugins about one compaction."""

from collections.abc import Sequence
from dataclasses import dataclass

INSTRUCTIONS_MAX_BYTES = 4096
"""The bound of the proto for the instructions of one compaction, also after joining."""
_SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True)
class CompactionAnswer:
    """The answer of a plugin: a `refusal`, or `instructions` for the summary. Both may be empty."""

    plugin: str
    instructions: str = ""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class MergedCompaction:
    """The merged answer. `decided_by` is in order of priority."""

    instructions: str
    refusal: str
    decided_by: tuple[str, ...]


def merge_compaction(answers: Sequence[CompactionAnswer]) -> MergedCompaction:
    """Return the first refusal if there is one, else all instructions.

    Instructions are joined as paragraphs and cut at INSTRUCTIONS_MAX_BYTES.
    """
    for answer in answers:
        if answer.refusal:
            return MergedCompaction("", answer.refusal, (answer.plugin,))
    instructing = [answer for answer in answers if answer.instructions]
    joined = _SEPARATOR.join(answer.instructions for answer in instructing)
    return MergedCompaction(
        joined.encode()[:INSTRUCTIONS_MAX_BYTES].decode(errors="ignore"),
        "",
        tuple(answer.plugin for answer in instructing),
    )
