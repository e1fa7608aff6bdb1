"""Cut texts into the words that they are found by, and parse search queries.

The index and the queries are cut in the same way. Scripts without spaces between words are cut
into pairs of neighbouring characters: any part of a text with two characters or more is then a
phrase of pairs.
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
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007"
    "\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
# Scripts with vowel signs, which the index leaves out: the text decides what it finds of them.
_SIGNED = re.compile("[\u0900-\u0eff\u1000-\u109f\u1780-\u17ff]")
_RUN = re.compile(rf"(?P<unspaced>[{_UNSPACED}]+)|(?:[A-Za-z0-9]+|(?![{_UNSPACED}])[^\W_]|[{_MARKS}])+")
# Characters that a text may also have decomposed: Hangul syllables, and kana with their marks,
# in full or half width. The index has them as they stand.
_COMPOSED = re.compile("[\u1100-\u11ff\u3040-\u30ff\uac00-\ud7af\uff66-\uff9f]")
_WIDE = {narrow: unicodedata.normalize("NFKC", chr(narrow)) for narrow in range(0xFF66, 0xFFA0)}
_NARROW = {ord(wide): chr(narrow) for narrow, wide in _WIDE.items()}
_ASCII_RUN = re.compile(r"[A-Za-z0-9]+")  # The same for ASCII texts, and much faster.
_TERM = re.compile(r'-?"[^"]*"?|\S+')

MAX_WORD_CHARS = 200
"""A longer word is found by its beginning."""

PIECE_WORDS = 3_000
"""Words in one piece of a text, far below the number of positions that the database
distinguishes.
"""

_SAME_WORDS = 250  # The database keeps at most 255 positions of one word.
_PIECE_BYTES = 512 * 1024  # Of a piece's words; the database takes less than twice as much.
_OVERLAP = 32
"""Words that a piece repeats of the one before: a phrase of up to so many words lies within one
piece. Longer ones are split.
"""

MAX_TERMS = 32
"""Terms of one query."""

_GAP = 5  # Between texts of one entry: no phrase spans two texts.


class Word(NamedTuple):
    """A word, its position among the words, and its characters in the text.

    `is_tail` marks the last character of a run without spaces. `indexed` is the word without vowel
    signs, as the index has it.
    """

    word: str
    place: int
    start: int
    end: int
    is_tail: bool
    indexed: str


class Lexeme(NamedTuple):
    """A word of a query, and its offset in its phrase."""

    word: str
    offset: int
    is_prefix: bool
    indexed: str


@dataclass(frozen=True, slots=True)
class Term:
    """A word or a phrase that must occur, or must not if `is_excluded` is set; `others` are its
    other spellings.
    """

    lexemes: tuple[Lexeme, ...]
    is_excluded: bool
    others: tuple[tuple[Lexeme, ...], ...] = ()

    @property
    def needs_text(self) -> bool:
        """Return whether the index finds more than this term, so that only the text can decide."""
        return _is_long(self.lexemes) or any(_SIGNED.search(lexeme.word) for lexeme in self.lexemes)

    def tsquery(self) -> str:
        """Return the term as the database reads it. Words have no character that needs quoting."""
        return " | ".join(map(_phrase, (self.lexemes, *self.others)))

    def spellings(self) -> "list[Term]":
        """Return one term for each spelling."""
        return [Term(lexemes, self.is_excluded) for lexemes in (self.lexemes, *self.others)]


def words_of(text: str) -> Iterator[Word]:
    """Yield the words of a text in order."""
    if text.isascii():
        for place, run in enumerate(_ASCII_RUN.finditer(text)):
            start, end = run.span()
            word = _plain(run.group())
            yield Word(word, place, start, end, False, word)
        return
    place = 0
    for run in _RUN.finditer(text):
        start, end = run.span()
        if run["unspaced"] is None:
            yield _word(run.group(), place, start, end)
            place += 1
            continue
        for at in range(start, end):
            until = min(at + 2, end)
            yield _word(text[at:until], place, at, until, is_tail=at + 1 == end)
            place += 1


def pieces_of(texts: Iterable[str]) -> Iterator[str]:
    """Yield the index of an entry's texts: each piece is a list of words with their positions, as
    the database reads it.
    """
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
    """Return the terms of a query; terms without a word are left out."""
    terms: list[Term] = []
    for found in _TERM.finditer(query):
        text = found.group()
        is_excluded = text.startswith("-") and len(text) > 1
        text = text.removeprefix("-") if is_excluded else text
        is_prefix = text.endswith("*")
        if lexemes := _lexemes(text.strip('"'), is_prefix=is_prefix):
            spelled = (_lexemes(other, is_prefix=is_prefix) for other in _other_spellings(text.strip('"')))
            others = [other for other in dict.fromkeys(spelled) if other not in ((), lexemes)]
            is_long = any(
                map(_is_long, (lexemes, *others))
            )  # Such a one is asked for in parts, as it is written.
            terms.append(Term(lexemes, is_excluded, () if is_long else tuple(others)))
    return terms


def parts_of(term: Term) -> list[Term]:
    """Split the term into phrases that each lie within one piece of a text."""
    first, last = term.lexemes[0].offset, term.lexemes[-1].offset
    parts: list[Term] = []
    for start in range(first, max(first, last - _OVERLAP // 2) + 1, _OVERLAP // 2):
        lexemes = tuple(lexeme for lexeme in term.lexemes if start <= lexeme.offset < start + _OVERLAP)
        parts.append(Term(lexemes, term.is_excluded, term.others))
    return parts


def find_first(words: Iterable[Word], terms: Sequence[Term]) -> tuple[int, int] | None:
    """Return the characters where the first of the terms that occur stands first.

    Keeps no more words than the longest term spans, and reads on only as long as an earlier term
    may occur.
    """
    terms = [spelling for term in terms for spelling in term.spellings()]
    span = max(term.lexemes[-1].offset - term.lexemes[0].offset for term in terms)
    exact, beginnings = _firsts(terms)
    nearby: deque[Word | None] = deque()  # None after the end.
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
    """Return the first words of the terms, and the beginnings of first words."""
    firsts = [term.lexemes[0] for term in terms]
    return (
        frozenset(first.word for first in firsts if not first.is_prefix),
        tuple(first.word for first in firsts if first.is_prefix),
    )


def _end_of(term: Term, first: Word, following: Sequence[Word | None]) -> int | None:
    """Return where the term ends that begins with this word, None if it does not match."""
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
            continue  # The pair before it contains it.
        is_last = index == len(words) - 1
        lexemes.append(Lexeme(word.word, word.place, stands_alone or (is_prefix and is_last), word.indexed))
    return tuple(lexemes)


def _matches(word: Word, lexeme: Lexeme) -> bool:
    return word.word.startswith(lexeme.word) if lexeme.is_prefix else word.word == lexeme.word


def _plain_words(text: str) -> Iterator[str]:
    """Yield the indexed words of a text without positions, which is faster for long texts."""
    if not text.isascii():
        for word in words_of(text):
            yield word.indexed
        return
    for run in _ASCII_RUN.finditer(text):
        yield run.group().lower()[:MAX_WORD_CHARS]


def _plain(word: str) -> str:
    if word.isascii():
        return word.lower()[:MAX_WORD_CHARS]
    folded = _folded(word)
    if folded.isalnum():
        return folded[:MAX_WORD_CHARS]
    return _cut(letter for letter in folded if _is_said(letter) or _is_sign(letter))


def _word(text: str, place: int, start: int, end: int, *, is_tail: bool = False) -> Word:
    word = _plain(text)
    is_signed = _SIGNED.search(word) is not None
    indexed = _cut(letter for letter in _folded(text) if _is_said(letter)) if is_signed else word
    return Word(word, place, start, end, is_tail, indexed)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _cut(letters: Iterable[str]) -> str:
    return "".join(letters)[:MAX_WORD_CHARS] or "x"


def _is_said(letter: str) -> bool:
    return letter.isalnum() or unicodedata.combining(letter) != 0


def _is_sign(letter: str) -> bool:
    return unicodedata.category(letter) in ("Mn", "Mc") and _SIGNED.match(letter) is not None


def _is_long(lexemes: Sequence[Lexeme]) -> bool:
    return lexemes[-1].offset - lexemes[0].offset >= _OVERLAP


def _other_spellings(text: str) -> tuple[str, ...]:
    """Return the text composed, decomposed, and decomposed in half width."""
    if _COMPOSED.search(text) is None:
        return ()
    composed = unicodedata.normalize("NFC", text.translate(_WIDE))
    decomposed = unicodedata.normalize("NFD", composed)
    return composed, decomposed, decomposed.translate(_NARROW)


def _phrase(lexemes: Sequence[Lexeme]) -> str:
    first, *more = lexemes
    text = _operand(first)
    at = first.offset
    for lexeme in more:
        text += f" <{lexeme.offset - at}> {_operand(lexeme)}"
        at = lexeme.offset
    return text


def _operand(lexeme: Lexeme) -> str:
    return f"'{lexeme.indexed}'" + (":*" if lexeme.is_prefix else "")


def _tsvector(places: dict[str, list[int]]) -> str:
    return " ".join(f"'{word}':{','.join(map(str, at))}" for word, at in places.items())
