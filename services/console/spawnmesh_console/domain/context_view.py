"""A context as it is shown: its entries with their tokens, and what it leaves out."""

from dataclasses import dataclass

from spawnmesh_console.domain.context_bar import ContextPart
from spawnmesh_console.domain.shown_entries import ShownEntry

_MAX_LINES = 30
_MAX_BEGINNING = 4_000
_MAX_SHOWN = 200_000

PART_WORDS = {
    ContextPart.SYSTEM: ("system prompt", "the agent's system prompt as it is now"),
    ContextPart.SUMMARY: ("summarised", "a summary stands for older entries"),
    ContextPart.WHOLE: ("whole", "entries that the model reads completely"),
    ContextPart.STUBBED: ("stubbed", "notes stand for large outputs, which the model can read on request"),
    ContextPart.CUT: ("cut", "results of which the model reads the beginning alone"),
    ContextPart.STAND_IN: ("stand-in", "errors stand for results that are missing"),
    ContextPart.FREE: ("free", "room for more"),
}
"""The word for each part of a budget, and what it means."""


@dataclass(frozen=True, slots=True)
class FoldedText:
    """The beginning of a text, which is always shown, and the rest, which is folded.

    `line_count` is of the rest. `left_out_count` are the characters that are not on the page.
    """

    beginning: str
    rest: str
    line_count: int
    left_out_count: int


@dataclass(frozen=True, slots=True)
class ContextItem:
    """An entry of a context. `full_token_count` is that of the complete entry."""

    entry: ShownEntry
    part: ContextPart
    token_count: int
    full_token_count: int
    is_fresh: bool
    file_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeftOutRange:
    """Entries that a context does not contain, between two seqs."""

    first_seq: int
    last_seq: int
    entry_count: int
    cause: str


@dataclass(frozen=True, slots=True)
class ShownContext:
    """A context within its budget. Counts are in tokens of `vocabulary`."""

    items: tuple[ContextItem, ...]
    token_count: int
    system_token_count: int
    dropped_count: int
    superseded_count: int
    left_out: tuple[LeftOutRange, ...]
    is_estimate: bool
    vocabulary: str
    is_compaction_due: bool

    @property
    def part_counts(self) -> dict[ContextPart, int]:
        """The tokens of each part that is used."""
        counts = {ContextPart.SYSTEM: self.system_token_count}
        for item in self.items:
            counts[item.part] = counts.get(item.part, 0) + item.token_count
        return counts

    @property
    def saved_count(self) -> int:
        """The tokens that references and cuts save."""
        return sum(max(item.full_token_count - item.token_count, 0) for item in self.items)

    @property
    def left_out_sentences(self) -> list[str]:
        """A sentence for each range that is missing; without ranges, for each cause."""
        if self.left_out:
            return [_left_out(one.entry_count, one.cause, _place(one)) for one in self.left_out]
        counts = {"BUDGET": self.dropped_count, "SUPERSEDED": self.superseded_count}
        return [_left_out(count, cause) for cause, count in counts.items() if count]


def folded(text: str) -> FoldedText:
    """Return the text, folded behind its first lines and its first characters."""
    shown, left_out = text[:_MAX_SHOWN], max(len(text) - _MAX_SHOWN, 0)
    beginning = "\n".join(shown.split("\n", _MAX_LINES)[:_MAX_LINES])[:_MAX_BEGINNING]
    rest = shown[len(beginning) :].removeprefix("\n")
    return FoldedText(beginning, rest, rest.count("\n") + 1 if rest else 0, left_out)


_CAUSES = {
    "BUDGET": ("did not fit the budget", "did not fit the budget"),
    "SUPERSEDED": ("is a superseded draft", "are superseded drafts"),
    "UNMATCHED": ("has no matching call or result", "have no matching call or result"),
}
_UNKNOWN_CAUSE = ("is left out", "are left out")


def _left_out(count: int, cause: str, where: str = "") -> str:
    singular, plural = _CAUSES.get(cause, _UNKNOWN_CAUSE)
    return f"{_entries(count)}{where} {singular if count == 1 else plural}."


def _place(one: LeftOutRange) -> str:
    if one.first_seq == one.last_seq:
        return f" (entry {one.first_seq})"
    return f" (among entries {one.first_seq} to {one.last_seq})"


def _entries(count: int) -> str:
    return "1 message or note" if count == 1 else f"{count:,} messages and notes"
