"""How the answers of several plugins about one compaction become one."""

from collections.abc import Sequence
from dataclasses import dataclass

INSTRUCTIONS_MAX_BYTES = 4096
"""What the contract allows for the instructions of one compaction, joined or not."""
_BETWEEN_INSTRUCTIONS = "\n\n"


@dataclass(frozen=True, slots=True)
class CompactionAnswer:
    """One plugin's answer: `refusal`, or else what the summary has to keep; both empty where it has nothing to say."""

    plugin: str
    instructions: str = ""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class MergedCompaction:
    """What all say together; `decided_by` in order of priority."""

    instructions: str
    refusal: str
    decided_by: tuple[str, ...]


def merge_compaction(answers: Sequence[CompactionAnswer]) -> MergedCompaction:
    """The first refusal, whatever was said before it; else all instructions, as paragraphs cut at INSTRUCTIONS_MAX_BYTES."""
    for answer in answers:
        if answer.refusal:
            return MergedCompaction("", answer.refusal, (answer.plugin,))
    instructing = [answer for answer in answers if answer.instructions]
    joined = _BETWEEN_INSTRUCTIONS.join(answer.instructions for answer in instructing)
    return MergedCompaction(
        joined.encode()[:INSTRUCTIONS_MAX_BYTES].decode(errors="ignore"),
        "",
        tuple(answer.plugin for answer in instructing),
    )
