"""Which part of a transcript a summary is made of, in which pieces, when a summary is short enough, and what stands for one that is not."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from spawnmesh_transcript.domain.turns import Group, Turn

MIN_SOURCE_TOKENS = 256
"""What is less than this is not worth a summary."""

MAX_SUMMARY_TOKENS = 4_000
PIECE_TOKENS = 24_000
"""What a model is shown of the sources at once: most models take this, beside a summary and the instructions."""

MAX_PIECES = 6
"""Passes of one compaction; what is beyond is left to the next one."""

_SHARE = 2  # A summary that saved less than half would be made anew all the time.
_FILES_SHARE = 4  # Of what a summary may have, for files that it does not name.
_FILE_ID = re.compile(r"file_[0-9a-z]{26}")
_EXCERPT_CHARS = (800, 400, 200, 100, 50)

Count = Callable[[str], int]


class Method(StrEnum):
    """How a summary was made; spelled as in the table and in the contract."""

    NORMAL = "NORMAL"
    AGGRESSIVE = "AGGRESSIVE"
    EXCERPT = "EXCERPT"


@dataclass(frozen=True, slots=True)
class Source:
    """A message or note to be summarized, as a model reads it: `line` with its tokens, and who says what, for an excerpt."""

    seq: int
    speaker: str
    text: str
    line: str
    token_count: int


def whole_end(groups: Sequence[Group], end_seq: int) -> int:
    """The newest seq up to `end_seq` that no call stands before and one of its results behind. Groups in the order of their heads."""
    for group in reversed(groups):
        if group.head.seq <= end_seq < _newest_seq(group):
            end_seq = group.head.seq - 1
    return end_seq


def least_end(groups: Sequence[Group], turns: Iterable[Turn]) -> int:
    """The oldest seq that no call stands before and one of its results behind, and up to which the turns are worth a summary.

    The newest that there is where all of them together are not. Groups in the order of their heads, turns oldest first.
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
    """The seq of the newest source that the passes of one compaction reach."""
    return pieces(sources)[:MAX_PIECES][-1][-1].seq


def pieces(sources: Iterable[Source]) -> list[list[Source]]:
    """The sources in their order, as many at once as a model is shown, and one at least."""
    found: list[list[Source]] = []
    room = 0
    for source in sources:
        if not found or source.token_count > room:
            found.append([])
            room = PIECE_TOKENS
        found[-1].append(source)
        room -= source.token_count
    return found


def summary_limit(source_token_count: int) -> int:
    """How many tokens a summary of so many may have."""
    return min(MAX_SUMMARY_TOKENS, source_token_count // _SHARE)


def is_worth_it(turns: Iterable[Turn]) -> bool:
    """Whether there is enough to summarize."""
    return sum(turn.token_count for turn in turns) >= MIN_SOURCE_TOKENS


def is_due(percent: int, *, has_dropped: bool, token_count: int, token_budget: int) -> bool:
    """Whether a context that has so many tokens of its budget, what is set aside among them, is to be compacted; 0 percent is never."""
    return bool(percent) and (has_dropped or token_count * 100 >= percent * token_budget)


def excerpt(previous_summary: str, sources: Sequence[Source], *, max_token_count: int, count: Count) -> str:
    """The beginnings of the previous summary and of the sources, each cut at a character; says of itself what it is.

    The same for the same sources, and no longer than it may be: where even short beginnings are too many, the newest.
    """
    header = f"Excerpt: only the beginnings of {len(sources)} earlier messages, since no summary could be made of them."
    lines = [header]
    if previous_summary:
        lines.append(cut_to_tokens("Before them: " + one_line(previous_summary), max_token_count // 2, count))
    room = max_token_count - sum(count(line) + 1 for line in lines)
    kept: list[str] = []
    for char_count in _EXCERPT_CHARS:
        kept = _newest_fitting(sources, char_count, room, count)
        if len(kept) == len(sources):
            break
    while count(text := "\n".join([*lines, *kept])) > max_token_count:
        if not kept:
            return cut_to_tokens(text, max_token_count, count)
        kept = kept[1:]
    return text


def files_in(text: str) -> list[str]:
    """The ids of files that a text names."""
    return _FILE_ID.findall(text)


def files_line(file_ids: Sequence[str], *, limit: int, count: Count) -> str:
    """A line that names the newest of these files, given oldest first: as many as may be, beside a summary of up to `limit` tokens."""
    kept = list(dict.fromkeys(reversed(file_ids)))
    while kept and count(line := _files_line(kept)) > limit // _FILES_SHARE:
        kept = kept[: len(kept) * 3 // 4]
    return line if kept else ""


def with_files(text: str, line: str) -> str:
    """The text, and behind it the line of those files that it does not name."""
    missing = [file_id for file_id in files_in(line) if file_id not in text]
    return text + _files_line(missing) if missing else text


def _files_line(file_ids: Sequence[str]) -> str:
    return "\n\nKept as files, to be read with transcript_describe: " + ", ".join(file_ids)


def cut_to_tokens(text: str, max_token_count: int, count: Count) -> str:
    """The longest beginning that has so many tokens at most, as far as halving finds it."""
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
    """The text, without its middle where it is longer; says how much is missing."""
    if len(text) <= max_chars:
        return text
    end = max_chars // 3
    return f"{text[: max_chars - end]} [… {len(text) - max_chars:,} characters left out …] {text[-end:]}"


def one_line(text: str) -> str:
    """The text with every run of white space as one space."""
    return " ".join(text.split())


def _newest_fitting(sources: Sequence[Source], char_count: int, room: int, count: Count) -> list[str]:
    kept: list[str] = []
    for source in reversed(sources):
        text = one_line(source.text)
        line = f"{source.speaker}: {text[:char_count]}{'…' if len(text) > char_count else ''}"
        room -= count(line) + 1
        if room < 0:
            break
        kept.append(line)
    kept.reverse()
    return kept


def _newest_seq(group: Group) -> int:
    return max(member.seq for member in group.members if isinstance(member, Turn))
