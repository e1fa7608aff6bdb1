"""Texts as the words that they are found by, and what people type as a question about them.

The same cutting makes the index and the question, so that both mean the same words. Scripts that put no spaces between words are cut into
pairs of neighbouring characters: any part of a text of two characters or more is then a phrase of pairs.
"""

import re
import unicodedata
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0dff"
    "\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
)
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_RUN = re.compile(rf"(?P<unspaced>[{_UNSPACED}]+)|(?:(?![{_UNSPACED}])[^\W_]|[{_MARKS}])+")
_TERM = re.compile(r'-?"[^"]*"?|\S+')

MAX_WORD_CHARS = 200
"""Longer ones are no words; they are found by their beginning."""

PIECE_WORDS = 3_000
"""Words in one piece of a text, far below the number of places that the database can tell apart."""

_SAME_WORDS = 250  # Nor can it keep more places of one word.
_PIECE_BYTES = 512 * 1024  # Of a piece's words: the database takes less than twice as much.
_OVERLAP = 32
"""Words that a piece has of the one before, so that no phrase of as many falls between two. Longer ones are asked for in parts."""

MAX_TERMS = 32
"""In one question."""

_GAP = 5  # Between texts of one entry: no phrase goes from one to the next.


class Word(NamedTuple):
    """A word and where it is: which one of the text's words, and between which of its characters. `is_tail` ends a run without spaces."""

    word: str
    place: int
    start: int
    end: int
    is_tail: bool


class Lexeme(NamedTuple):
    """A word of a question, and how many places behind the first of its phrase it stands."""

    word: str
    offset: int
    is_prefix: bool


@dataclass(frozen=True, slots=True)
class Term:
    """A word or a phrase that must be there, or with `is_excluded` must not."""

    lexemes: tuple[Lexeme, ...]
    is_excluded: bool

    def tsquery(self) -> str:
        """As the database reads it. Words have no character that would need care."""
        first, *more = self.lexemes
        text = _operand(first)
        at = first.offset
        for lexeme in more:
            text += f" <{lexeme.offset - at}> {_operand(lexeme)}"
            at = lexeme.offset
        return text


def words_of(text: str) -> Iterator[Word]:
    """The words of a text in order."""
    place = 0
    for run in _RUN.finditer(text):
        start, end = run.span()
        if run["unspaced"] is None:
            yield Word(_plain(run.group()), place, start, end, False)
            place += 1
            continue
        for at in range(start, end):
            yield Word(_plain(text[at : min(at + 2, end)]), place, at, min(at + 2, end), at + 1 == end)
            place += 1


def pieces_of(texts: Sequence[str]) -> Iterator[str]:
    """The index of an entry's texts: each piece as a list of words with their places, as the database reads it."""
    places: dict[str, list[int]] = {}
    recent: deque[str] = deque(maxlen=_OVERLAP)
    count = size = 0
    for text in texts:
        for word in words_of(text):
            if count >= PIECE_WORDS or len(places.get(word.word, ())) >= _SAME_WORDS or size >= _PIECE_BYTES:
                yield _tsvector(places)
                places, count, size = {}, 0, 0
                for repeated in recent:
                    count += 1
                    size += len(repeated.encode())
                    places.setdefault(repeated, []).append(count)
            count += 1
            size += len(word.word.encode())
            places.setdefault(word.word, []).append(count)
            recent.append(word.word)
        count += _GAP
        recent.clear()
    if places:
        yield _tsvector(places)


def parse_words(query: str) -> list[Term]:
    """The terms of a question, those without a word in them left out."""
    terms: list[Term] = []
    for found in _TERM.finditer(query):
        text = found.group()
        is_excluded = text.startswith("-") and len(text) > 1
        text = text.removeprefix("-") if is_excluded else text
        is_prefix = text.endswith("*")
        lexemes = _lexemes(text.strip('"'), is_prefix=is_prefix)
        if lexemes:
            terms.append(Term(lexemes, is_excluded))
    return terms


def parts_of(term: Term) -> list[Term]:
    """The term as phrases that are each within one piece of a text that has it."""
    first, last = term.lexemes[0].offset, term.lexemes[-1].offset
    parts: list[Term] = []
    for start in range(first, max(first, last - _OVERLAP // 2) + 1, _OVERLAP // 2):
        lexemes = tuple(lexeme for lexeme in term.lexemes if start <= lexeme.offset < start + _OVERLAP)
        parts.append(Term(lexemes, term.is_excluded))
    return parts


def find_term(words: Sequence[Word], term: Term) -> tuple[int, int] | None:
    """Between which characters of its text the term first stands."""
    first = term.lexemes[0]
    for index, word in enumerate(words):
        if not _matches(word, first):
            continue
        ends = [word.end]
        for lexeme in term.lexemes[1:]:
            at = index + lexeme.offset - first.offset
            if at >= len(words) or not _matches(words[at], lexeme):
                break
            ends.append(words[at].end)
        else:
            return word.start, ends[-1]
    return None


def _lexemes(text: str, *, is_prefix: bool) -> tuple[Lexeme, ...]:
    words = list(words_of(text))
    lexemes: list[Lexeme] = []
    for index, word in enumerate(words):
        stands_alone = word.is_tail and (index == 0 or words[index - 1].end <= word.start)
        if word.is_tail and not stands_alone:
            continue  # The pair before it has said it.
        is_last = index == len(words) - 1
        lexemes.append(Lexeme(word.word, word.place, stands_alone or (is_prefix and is_last)))
    return tuple(lexemes)


def _matches(word: Word, lexeme: Lexeme) -> bool:
    return word.word.startswith(lexeme.word) if lexeme.is_prefix else word.word == lexeme.word


def _plain(word: str) -> str:
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word).casefold())
    return (
        "".join(letter for letter in plain if letter.isalnum() or unicodedata.combining(letter))[:MAX_WORD_CHARS] or "x"
    )


def _operand(lexeme: Lexeme) -> str:
    return f"'{lexeme.word}'" + (":*" if lexeme.is_prefix else "")


def _tsvector(places: dict[str, list[int]]) -> str:
    return " ".join(f"'{word}':{','.join(map(str, at))}" for word, at in places.items())
