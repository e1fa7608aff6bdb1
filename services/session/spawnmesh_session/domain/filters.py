"""The text of a filter: a part of the language of AIP-160 (https://google.aip.dev/160).

    filter     = [ comparison { "AND" comparison } ]
    comparison = field operator value
    field      = name [ "." key ]
    operator   = "=" | "!=" | "<" | "<=" | ">" | ">=" | ":"
    value      = word | string | "*"

A key and a value are a word, or a string in single or double quotes. In a string, a backslash
stands before a quote or another backslash. `*` without quotes stands after `:` and means that the
field is set. OR, NOT, parentheses and functions are refused. The caller gives the fields a meaning.
"""

import dataclasses
import re
from dataclasses import dataclass
from enum import StrEnum

from spawnmesh_core.errors import MeshError, invalid

MAX_COMPARISONS = 32
PRESENT = "*"
"""The value after `:` that any value of a field matches."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"[A-Za-z0-9_.-]+")
_WORD = re.compile(r"[^\s\"'()=<>!,\\]+")
_SPACE = re.compile(r"\s*")
_QUOTES = "\"'"


class Operator(StrEnum):
    """The comparisons of a filter."""

    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    HAS = ":"


# Two characters are tried before one.
_OPERATORS = sorted(Operator, key=len, reverse=True)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A field, or a key of it, and the value that it is compared with.

    With `is_presence`, the value is PRESENT. `position` counts the characters of the filter from 1;
    it takes no part in a comparison of two of these.
    """

    field: str
    key: str
    operator: Operator
    value: str
    is_presence: bool = False
    position: int = dataclasses.field(default=1, compare=False)

    @property
    def name(self) -> str:
        """Return the field with its key, for people."""
        return f"{self.field}.{self.key}" if self.key else self.field


def filter_error(position: int, description: str) -> MeshError:
    """Return the refusal of a filter at this character."""
    return invalid("filter", f"at character {position}: {description}")


def parse_filter(text: str) -> tuple[Comparison, ...]:
    """Return the comparisons that a session must all fulfil; none for a filter of white space.

    Raise INVALID_REQUEST for the field `filter`, with the position, for any other text.
    """
    reader = _Reader(text)
    comparisons: list[Comparison] = []
    while not reader.is_at_end():
        if comparisons:
            reader.read_and()
        if len(comparisons) == MAX_COMPARISONS:
            raise filter_error(reader.position, f"a filter has at most {MAX_COMPARISONS} comparisons")
        comparisons.append(reader.read_comparison())
    return tuple(comparisons)


class _Reader:
    """Reads a filter from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def position(self) -> int:
        return self._at + 1

    def is_at_end(self) -> bool:
        """Skip white space; return whether nothing follows."""
        match = _SPACE.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._at == len(self._text)

    def read_and(self) -> None:
        word = self._peek(_NAME)
        if word == "AND":
            self._at += len(word)
            if self.is_at_end():
                raise filter_error(self.position, "a comparison must follow AND")
            return
        if word == "OR":
            raise filter_error(self.position, "OR is not supported; list the sessions of each part")
        raise filter_error(self.position, "expected AND, in capitals, before the next comparison")

    def read_comparison(self) -> Comparison:
        position = self.position
        name = self._read_name()
        key = self._read_key() if self._take(".") else ""
        operator = self._read_operator(name)
        value, is_quoted = self._read_value(operator)
        is_presence = operator is Operator.HAS and value == PRESENT and not is_quoted
        return Comparison(name, key, operator, value, is_presence, position)

    def _read_name(self) -> str:
        if self._text[self._at] in "()":
            raise filter_error(self.position, "parentheses are not supported; AND joins all comparisons")
        name = self._peek(_NAME)
        if name == "NOT" or self._text[self._at] == "-":
            raise filter_error(self.position, "NOT is not supported; != is")
        if not name or name in ("AND", "OR"):
            raise filter_error(self.position, "expected the name of a field")
        self._at += len(name)
        return name

    def _read_key(self) -> str:
        key = self._read_string() if self._next_is(_QUOTES) else self._read_word(_KEY, "a key")
        if not key:
            raise filter_error(self.position, "a key is not empty")
        return key

    def _read_operator(self, name: str) -> Operator:
        if not self.is_at_end():
            for operator in _OPERATORS:
                if self._take(operator):
                    return operator
        allowed = " ".join(Operator)
        raise filter_error(self.position, f"expected one of {allowed} after {name}")

    def _read_value(self, operator: Operator) -> tuple[str, bool]:
        if self.is_at_end():
            raise filter_error(self.position, f"expected a value after {operator}")
        if self._next_is(_QUOTES):
            return self._read_string(), True
        return self._read_word(_WORD, "a value; put it in quotes if it has other characters"), False

    def _read_word(self, pattern: re.Pattern[str], expected: str) -> str:
        word = self._peek(pattern)
        if not word:
            raise filter_error(self.position, f"expected {expected}")
        self._at += len(word)
        return word

    def _read_string(self) -> str:
        begin, quote = self.position, self._text[self._at]
        self._at += 1
        characters: list[str] = []
        while self._at < len(self._text):
            character = self._text[self._at]
            self._at += 1
            if character == quote:
                return "".join(characters)
            if character == "\\":
                if not self._next_is(_QUOTES + "\\"):
                    raise filter_error(self.position - 1, "a backslash stands before a quote or a backslash")
                character = self._text[self._at]
                self._at += 1
            if character == "\0":
                raise filter_error(self.position - 1, "must not contain NUL")
            characters.append(character)
        raise filter_error(begin, "the string has no end")

    def _peek(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        return match.group() if match else ""

    def _next_is(self, characters: str) -> bool:
        return self._at < len(self._text) and self._text[self._at] in characters

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True
