"""Texts as the words that they are found by, and what people type as a question about them.

The same cutting makes the index and the question, so that both mean the same words. Scripts that put no spaces between words are cut into
pairs of neighbouring characters: any part of a text of two characters or more is then a phrase of pairs.
"""

import re
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import NamedTuple

_MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0dff"
    "\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
)
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_RUN = re.compile(rf"(?P<unspaced>[{_UNSPACED}]+)|(?:[A-Za-z0-9]+|(?![{_UNSPACED}])[^\W_]|[{_MARKS}])+")
_ASCII_RUN = re.compile(r"[A-Za-z0-9]+")  # The same of a text that has nothing else, and much faster.
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
    if text.isascii():
        for place, run in enumerate(_ASCII_RUN.finditer(text)):
            start, end = run.span()
            yield Word(_plain(run.group()), place, start, end, False)
        return
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


def pieces_of(texts: Iterable[str]) -> Iterator[str]:
    """The index of an entry's texts: each piece as a list of words with their places, as the database reads it."""
    places: dict[str, list[int]] = {}
    recent: deque[str] = deque(maxlen=_OVERLAP)
    count = size = 0
    for text in texts:
        for word in _plain_words(text):
            at = places.get(word)
            if count >= PIECE_WORDS or size >= _PIECE_BYTES or (at is not None and len(at) >= _SAME_WORDS):
                yield _tsvector(places)
                places, count, size = {}, 0, 0
                for repeated in recent:
                    count += 1
                    size += len(repeated.encode())
                    places.setdefault(repeated, []).append(count)
                at = places.get(word)
            count += 1
            size += len(word.encode())
            if at is None:
                places[word] = [count]
            else:
                at.append(count)
            recent.append(word)
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


def find_first(words: Iterable[Word], terms: Sequence[Term]) -> tuple[int, int] | None:
    """Between which characters of its text the first of the terms that it has stands for the first time.

    Keeps no more words than the longest of the terms spans, and reads on only as long as an earlier term may come.
    """
    span = max(term.lexemes[-1].offset - term.lexemes[0].offset for term in terms)
    exact, beginnings = _firsts(terms)
    nearby: deque[Word | None] = deque()  # None behind the end.
    found: tuple[int, int] | None = None
    for word in chain(words, repeat(None, span)):
        nearby.append(word)
        if len(nearby) <= span or (first := nearby.popleft()) is None:
            continue
        if first.word not in exact and not first.word.startswith(beginnings):
            continue
        for rank, term in enumerate(terms):
            if (end := _end_of(term, first, nearby)) is not None:
                if rank == 0:
                    return first.start, end
                found = first.start, end
                terms = terms[:rank]
                exact, beginnings = _firsts(terms)
                break
    return found


def _firsts(terms: Sequence[Term]) -> tuple[frozenset[str], tuple[str, ...]]:
    """The words that one of the terms begins with, and how such words begin."""
    firsts = [term.lexemes[0] for term in terms]
    return (
        frozenset(first.word for first in firsts if not first.is_prefix),
        tuple(first.word for first in firsts if first.is_prefix),
    )


def _end_of(term: Term, first: Word, following: Sequence[Word | None]) -> int | None:
    """Where the term ends that begins with this word; None where it does not."""
    if not _matches(first, term.lexemes[0]):
        return None
    end = first.end
    for lexeme in term.lexemes[1:]:
        word = following[lexeme.offset - term.lexemes[0].offset - 1]
        if word is None or not _matches(word, lexeme):
            return None
        end = word.end
    return end


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


def _plain_words(text: str) -> Iterator[str]:
    """The same as `words_of` without their places, for what reads all of a long text."""
    if not text.isascii():
        for word in words_of(text):
            yield word.word
        return
    for run in _ASCII_RUN.finditer(text):
        yield run.group().lower()[:MAX_WORD_CHARS]


def _plain(word: str) -> str:
    if word.isascii():
        return word.lower()[:MAX_WORD_CHARS]
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word).casefold())
    return (
        "".join(letter for letter in plain if letter.isalnum() or unicodedata.combining(letter))[:MAX_WORD_CHARS] or "x"
    )


def _operand(lexeme: Lexeme) -> str:
    return f"'{lexeme.word}'" + (":*" if lexeme.is_prefix else "")


def _tsvector(places: dict[str, list[int]]) -> str:
    return " ".join(f"'{word}':{','.join(map(str, at))}" for word, at in places.items())
