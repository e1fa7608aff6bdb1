"""Compare two answers, word by word or line by line."""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher, unified_diff

Part = tuple[str, str]
"""A mark and a text: `-` is of the first answer alone, `+` of the second, and a blank of both."""

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_MAX_PARTS = 1000  # Texts that repeat themselves take a time that rises with the cube.
_CONTEXT_LINES = 2


def word_parts(old: str, new: str) -> list[Part] | None:
    """Return the parts of two answers of one line each, in order; None if they have more lines, or
    too many words to be compared.
    """
    if any("\n" in text for text in (old, new)):
        return None
    words, others = _WORDS.findall(old), _WORDS.findall(new)
    return list(_parts(words, others)) if max(len(words), len(others)) <= _MAX_PARTS else None


def line_parts(old: str, new: str) -> list[Part] | None:
    """Return the lines that differ, with two more around them; None if there are too many.

    A part whose mark is `@` says where the next lines are.
    """
    lines, others = old.split("\n"), new.split("\n")
    if max(len(lines), len(others)) > _MAX_PARTS:
        return None
    found = list(unified_diff(lines, others, n=_CONTEXT_LINES, lineterm=""))[2:]  # Without names.
    return [("@", line) if line.startswith("@@") else (line[0], line[1:]) for line in found]


def _parts(old: Sequence[str], new: Sequence[str]) -> Iterator[Part]:
    for kind, *places in SequenceMatcher(None, old, new).get_opcodes():
        begin, end, new_begin, new_end = places
        if kind == "equal":
            yield " ", "".join(old[begin:end])
            continue
        if begin < end:
            yield "-", "".join(old[begin:end])
        if new_begin < new_end:
            yield "+", "".join(new[new_begin:new_end])
