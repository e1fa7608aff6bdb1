"""Parse a JSON text into a tree whose nodes know their position in the text.

A value can be replaced while every other byte of the text is kept.
"""

import re
from dataclasses import dataclass
from json import JSONDecoder, dumps

MAX_DEPTH = 100
"""The deepest nesting that is parsed.

Tool calls nest less; a text with deeper nesting is refused.
"""

MAX_NODES = 500_000
"""The most values in one document, without keys: about a second of work.

A document of eight megabytes has fewer values, unless a value with its key takes only 16 bytes.
Without this limit, a document that consists of commas would have eight times as many.
"""

# Not strict: some providers send raw line breaks inside strings. A text that is not parsed is not
# redacted.
_STRINGS = JSONDecoder(strict=False)
_SPACE = re.compile(r"[ \t\n\r]*+")
# A string or an empty value, or else the character before a value. A string that does not end goes
# to the end of the text: otherwise each of its quotes would be the beginning of another search.
_COUNTED = re.compile(
    r'"(?:[^"\\]++|\\.)*+"?'  # Possessive: a string has megabytes.
    r"|\[[ \t\n\r]*+\]|\{[ \t\n\r]*+\}|([,\[{])",
    re.DOTALL,
)
# Values whose content is not needed; Python refuses to read very long numbers.
_SKIPPED = JSONDecoder(strict=False, parse_int=len)
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# A value with the space before it: a scalar, or the first character of any other value.
_VALUE = re.compile(
    r"[ \t\n\r]*+(?:(-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?|-?Infinity|NaN)"
    r"|(true|false|null)|[\"\[{])"
)
_NUMBER = 1  # The group of the pattern. Its other group has a name.


class NotJson(ValueError):
    """The text is not one JSON value."""


class TooManyNodes(NotJson):
    """The text has more values than the limit. It may or may not be JSON."""


@dataclass(slots=True)
class NodeBudget:
    """The number of values that may still be read from a document and from JSON texts in its
    strings.
    """

    left: int = MAX_NODES


# Nodes are not frozen: the creation of a frozen one takes three times as long.
@dataclass(slots=True)
class Scalar:
    """A number, true, false or null."""

    start: int
    end: int
    is_number: bool


@dataclass(slots=True)
class String:
    """A string; `value` has its escapes resolved."""

    start: int
    end: int
    value: str


@dataclass(slots=True)
class List:
    start: int
    end: int
    items: tuple["Node", ...]


@dataclass(slots=True)
class Object:
    """An object.

    A repeated key is in `members` as often. `keys` has the start and end of each key.
    """

    start: int
    end: int
    members: tuple[tuple[str, "Node"], ...]
    keys: tuple[tuple[int, int], ...]

    def member(self, name: str) -> "Node | None":
        """Return the last member of this name, as JSON readers do; None if there is none."""
        return next((child for key, child in reversed(self.members) if key == name), None)


Node = Scalar | String | List | Object


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of the text from `start` to `end` by `text`."""

    start: int
    end: int
    text: str


def parse_json(text: str, budget: NodeBudget | None = None) -> Node:
    """Parse a text that is one JSON value.

    Raises NotJson, also for nesting beyond MAX_DEPTH, and TooManyNodes. Each value reduces
    `budget`; the default budget is MAX_NODES.
    """
    node = _value(text, 0, 0, NodeBudget() if budget is None else budget)
    if _skip_space(text, node.end) != len(text):
        raise NotJson("text behind the value")
    return node


def may_have_too_many_nodes(text: str) -> bool:
    """Return False only if the text has at most MAX_NODES values.

    The check is cheap and may return True for fewer values: it counts the characters that precede
    each value but the first.
    """
    return sum(map(text.count, ",[{")) >= MAX_NODES


def require_few_nodes(text: str, limit: int = MAX_NODES) -> None:
    """Raise TooManyNodes for a JSON text that has more values than the limit.

    No value is parsed. A text that is not JSON may pass, or raise TooManyNodes.
    """
    if sum(map(text.count, ",[{")) >= limit:
        count_nodes(text, limit)


def count_nodes(text: str, limit: int) -> int:
    """Return the number of values of a JSON text. Raise TooManyNodes if it is above the limit.

    Values are counted by the commas and brackets outside of strings: none is parsed, and a parser
    meets no more of them in a text that is not JSON. The count takes no memory, stops at the limit,
    and other threads run meanwhile.
    """
    count = 1
    # A value takes three matches at most: what precedes it, its key, and itself.
    for number, found in enumerate(_COUNTED.finditer(text)):
        count += found.lastindex is not None
        if count > limit or number >= 3 * limit:
            break
    else:
        if count <= limit:
            return count
    raise TooManyNodes("too many values")


def member_spans(text: str) -> list[tuple[str, int, int]]:
    """Return the name, the start and the end of each member of an object, in a text that is JSON.

    A repeated name is there as often. The result is empty for any other value. No node is created,
    and the number of values has no limit. Raises NotJson for nesting that Python cannot read.
    """
    at = _skip_space(text, 0)
    if text[at : at + 1] != "{":
        return []
    spans: list[tuple[str, int, int]] = []
    at = _skip_space(text, at + 1)
    while text[at : at + 1] == '"':
        name, at = _string(text, at)
        start = _skip_space(text, _skip_space(text, at) + 1)  # Behind the colon.
        try:
            _, end = _SKIPPED.raw_decode(text, start)
        except RecursionError as error:
            raise NotJson("nested too deep") from error
        spans.append((name, start, end))
        at = _skip_space(text, end)
        at = _skip_space(text, at + 1) if text[at : at + 1] == "," else at
    return spans


def quoted(text: str) -> str:
    """Return the text as a JSON string. A lone surrogate can only be written as an escape."""
    return dumps(text, ensure_ascii=_SURROGATE.search(text) is not None)


def apply_edits(text: str, edits: list[Edit]) -> str:
    """Return the text with the edits applied. Edits must not overlap."""
    pieces: list[str] = []
    done = 0
    for edit in sorted(edits, key=lambda one: one.start):
        pieces += (text[done : edit.start], edit.text)
        done = edit.end
    pieces.append(text[done:])
    return "".join(pieces)


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _value(text: str, at: int, depth: int, budget: NodeBudget) -> Node:
    """Parse the value at this position, or behind the space there."""
    if depth > MAX_DEPTH:
        raise NotJson("nested too deep")
    if budget.left <= 0:
        raise TooManyNodes("too many values")
    budget.left -= 1
    found = _VALUE.match(text, at)
    if found is None:
        raise NotJson("no value")
    end = found.end()
    if group := found.lastindex:
        return Scalar(found.start(group), end, group == _NUMBER)
    start = end - 1
    first = text[start]
    if first == '"':
        value, end = _string(text, start)
        return String(start, end, value)
    return _object(text, start, depth, budget) if first == "{" else _list(text, start, depth, budget)


def _string(text: str, at: int) -> tuple[str, int]:
    try:
        value, end = _STRINGS.raw_decode(text, at)
    except ValueError as error:
        raise NotJson("a broken string") from error
    return str(value), end


def _object(text: str, start: int, depth: int, budget: NodeBudget) -> Object:
    members: list[tuple[str, Node]] = []
    keys: list[tuple[int, int]] = []
    at = _skip_space(text, start + 1)
    if text[at : at + 1] == "}":
        return Object(start, at + 1, (), ())
    while True:
        if text[at : at + 1] != '"':
            raise NotJson("no key")
        begin = at
        key, at = _string(text, at)
        keys.append((begin, at))
        if text[at : at + 1] != ":":
            at = _skip_space(text, at)
            if text[at : at + 1] != ":":
                raise NotJson("no colon")
        node = _value(text, at + 1, depth + 1, budget)
        members.append((key, node))
        at = node.end
        separator = text[at : at + 1]
        if separator not in (",", "}"):
            at = _skip_space(text, at)
            separator = text[at : at + 1]
        if separator == "}":
            return Object(start, at + 1, tuple(members), tuple(keys))
        if separator != ",":
            raise NotJson("no comma")
        at = _skip_space(text, at + 1)


def _list(text: str, start: int, depth: int, budget: NodeBudget) -> List:
    items: list[Node] = []
    at = _skip_space(text, start + 1)
    if text[at : at + 1] == "]":
        return List(start, at + 1, ())
    while True:
        node = _value(text, at, depth + 1, budget)
        items.append(node)
        at = node.end
        separator = text[at : at + 1]
        if separator not in (",", "]"):
            at = _skip_space(text, at)
            separator = text[at : at + 1]
        if separator == "]":
            return List(start, at + 1, tuple(items))
        if separator != ",":
            raise NotJson("no comma")
        at += 1
