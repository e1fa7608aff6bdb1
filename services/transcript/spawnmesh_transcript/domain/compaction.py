"""Rules of a compaction: which part of a transcript is summarized, in which pieces, how long a
summary may be, and what replaces one that could not be made.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from spawnmesh_transcript.domain.turns import Group, Turn

MIN_SOURCE_TOKENS = 256
"""Fewer tokens are not worth a summary."""

MAX_SUMMARY_TOKENS = 4_000
PIECE_TOKENS = 24_000
"""Tokens of the sources in one prompt: most models take this, beside a summary and the
instructions.
"""

MAX_PIECES = 6
"""Prompts of one compaction; the next compaction does the rest."""

_SHARE = 2  # A summary that saves less than half would soon be due again.
_FILES_SHARE = 4  # Part of a summary's limit for the files that it does not name.
_FILE_ID = re.compile(r"file_[0-9a-z]{26}")
_EXCERPT_CHARS = (800, 400, 200, 100, 50)

Count = Callable[[str], int]


class SummaryMethod(StrEnum):
    """The way a summary was made. Spelled as in the table and in the contract."""

    NORMAL = "NORMAL"
    AGGRESSIVE = "AGGRESSIVE"
    EXCERPT = "EXCERPT"


@dataclass(frozen=True, slots=True)
class Source:
    """A message or note to be summarized, as a model reads it: `line` with its tokens, and the
    speaker and the text for an excerpt.
    """

    seq: int
    speaker: str
    text: str
    line: str
    token_count: int


def unsplit_end(groups: Sequence[Group], end_seq: int) -> int:
    """Return the newest seq up to `end_seq` that does not separate a call from one of its results.

    Groups are in the order of their heads.
    """
    for group in reversed(groups):
        if group.head.seq <= end_seq < _newest_seq(group):
            end_seq = group.head.seq - 1
    return end_seq


def minimal_end(groups: Sequence[Group], turns: Iterable[Turn]) -> int:
    """Return the oldest seq that separates no call from its results and up to which a summary is
    worth it.

    Return the newest seq if all turns together are too little. Groups are in the order of their
    heads, turns oldest first.
    """
    end_seq = token_count = 0
    for turn in turns:
        if token_count >= MIN_SOURCE_TOKENS:
            break
        end_seq = turn.seq
        token_count += turn.token_count
    for group in groups:
        if group.head.seq > end_seq:
            break
        end_seq = max(end_seq, _newest_seq(group))
    return end_seq


def fitting_end(sources: Sequence[Source]) -> int:
    """Return the seq of the newest source that one compaction reaches."""
    return pieces(sources)[:MAX_PIECES][-1][-1].seq


def pieces(sources: Iterable[Source]) -> list[list[Source]]:
    """Split the sources, in order, into as many prompts as they need.

    Each has at least one source.
    """
    found: list[list[Source]] = []
    tokens_left = 0
    for source in sources:
        if not found or source.token_count > tokens_left:
            found.append([])
            tokens_left = PIECE_TOKENS
        found[-1].append(source)
        tokens_left -= source.token_count
    return found


def summary_limit(source_token_count: int) -> int:
    """Return the largest number of tokens that a summary of so many tokens may have."""
    return min(MAX_SUMMARY_TOKENS, source_token_count // _SHARE)


def is_worth_it(turns: Iterable[Turn]) -> bool:
    """Return whether there is enough to summarize."""
    return sum(turn.token_count for turn in turns) >= MIN_SOURCE_TOKENS


def is_due(percent: int, *, has_dropped: bool, token_count: int, token_budget: int) -> bool:
    """Return whether a context with so many tokens of its budget, the reserved ones included, is
    to be compacted.

    A percentage of 0 means never.
    """
    return bool(percent) and (has_dropped or token_count * 100 >= percent * token_budget)


def excerpt(previous_summary: str, sources: Sequence[Source], *, max_token_count: int, count: Count) -> str:
    """Return the beginnings of the previous summary and of the sources, with a header that says
    so.

    The result is the same for the same sources, and within the limit: if even short beginnings are
    too many, only the newest are kept.
    """
    header = (
        f"Excerpt: only the beginnings of {len(sources)} earlier messages, "
        "since no summary could be made of them."
    )
    lines = [header]
    if previous_summary:
        lines.append(cut_to_tokens("Before them: " + one_line(previous_summary), max_token_count // 2, count))
    tokens_left = max_token_count - sum(count(line) + 1 for line in lines)
    kept: list[str] = []
    for char_count in _EXCERPT_CHARS:
        kept = _newest_fitting(sources, char_count, tokens_left, count)
        if len(kept) == len(sources):
            break
    while count(text := "\n".join([*lines, *kept])) > max_token_count:
        if not kept:
            return cut_to_tokens(text, max_token_count, count)
        kept = kept[1:]
    return text


def files_in(text: str) -> list[str]:
    """Return the ids of files that a text names."""
    return _FILE_ID.findall(text)


def files_line(file_ids: Sequence[str], *, limit: int, count: Count) -> str:
    """Return a line that names the newest of these files, given oldest first.

    It names as many as fit beside a summary of up to `limit` tokens.
    """
    kept = list(dict.fromkeys(reversed(file_ids)))
    while kept and count(line := _files_line(kept)) > limit // _FILES_SHARE:
        kept = kept[: len(kept) * 3 // 4]
    return line if kept else ""


def with_files(text: str, line: str) -> str:
    """Return the text, followed by the files of the line that it does not name."""
    missing = [file_id for file_id in files_in(line) if file_id not in text]
    return text + _files_line(missing) if missing else text


def _files_line(file_ids: Sequence[str]) -> str:
    return "\n\nKept as files, to be read with transcript_describe: " + ", ".join(file_ids)


def cut_to_tokens(text: str, max_token_count: int, count: Count) -> str:
    """Return the longest beginning that has at most so many tokens, found by bisection."""
    if count(text) <= max_token_count:
        return text
    fits, too_long = 0, len(text)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if count(text[:middle]) <= max_token_count:
            fits = middle
        else:
            too_long = middle
    return text[:fits]


def cut_middle(text: str, max_chars: int) -> str:
    """Return the text, without its middle if it is too long. The gap says how much is missing."""
    if len(text) <= max_chars:
        return text
    end = max_chars // 3
    return f"{text[: max_chars - end]} [… {len(text) - max_chars:,} characters left out …] {text[-end:]}"


def one_line(text: str) -> str:
    """Return the text with every run of white space as one space."""
    return " ".join(text.split())


def _newest_fitting(sources: Sequence[Source], char_count: int, tokens_left: int, count: Count) -> list[str]:
    kept: list[str] = []
    for source in reversed(sources):
        text = one_line(source.text)
        line = f"{source.speaker}: {text[:char_count]}{'…' if len(text) > char_count else ''}"
        tokens_left -= count(line) + 1
        if tokens_left < 0:
            break
        kept.append(line)
    kept.reverse()
    return kept


def _newest_seq(group: Group) -> int:
    return max(member.seq for member in group.members if isinstance(member, Turn))
