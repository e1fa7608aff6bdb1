"""A JSON text as a tree whose nodes know where they stand in the text, so that one value can be replaced and the rest kept byte for byte."""

import re
from dataclasses import dataclass
from json import JSONDecoder, dumps

MAX_DEPTH = 100
"""Deeper nesting than any tool call has; a text beyond it is refused rather than half understood."""

MAX_NODES = 500_000
"""Values in one document, keys not counted: about a second of work. A document of eight megabytes has fewer, unless they are of 16 bytes each
with their keys; without a limit, one of nothing but commas has eight times as many."""

# Not strict: some providers send raw line breaks inside strings, and a text that is not understood is not redacted.
_STRINGS = JSONDecoder(strict=False)
_SPACE = re.compile(r"[ \t\n\r]*")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null|-?Infinity|NaN")


class NotJson(ValueError):
    """The text is not one JSON value."""


class TooManyNodes(NotJson):
    """The text has more values than it is searched for, whether or not it is JSON."""


@dataclass(slots=True)
class NodeBudget:
    """How many values may still be read of a document, with those of the JSON texts in its strings."""

    left: int = MAX_NODES


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number, true, false or null."""

    start: int
    end: int
    is_number: bool


@dataclass(frozen=True, slots=True)
class String:
    """A string; `value` has its escapes resolved."""

    start: int
    end: int
    value: str


@dataclass(frozen=True, slots=True)
class List:
    start: int
    end: int
    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Object:
    """An object; a key that is there twice is in `members` twice. `keys` are where each member's key begins and ends."""

    start: int
    end: int
    members: tuple[tuple[str, "Node"], ...]
    keys: tuple[tuple[int, int], ...]

    def member(self, name: str) -> "Node | None":
        """The last of this name, as JSON readers take it; None where there is none."""
        return next((child for key, child in reversed(self.members) if key == name), None)


Node = Scalar | String | List | Object


@dataclass(frozen=True, slots=True)
class Edit:
    """Puts `text` where the value from `start` to `end` was."""

    start: int
    end: int
    text: str


def parse_json(text: str, budget: NodeBudget | None = None) -> Node:
    """The one JSON value that `text` is. Raises NotJson, also for nesting beyond MAX_DEPTH, and TooManyNodes.

    What it reads is taken from `budget`; without one, it may read MAX_NODES.
    """
    node = _value(text, _skip_space(text, 0), 0, NodeBudget() if budget is None else budget)
    if _skip_space(text, node.end) != len(text):
        raise NotJson("text behind the value")
    return node


def may_have_too_many_nodes(text: str) -> bool:
    """A cheap look that is never wrong about a text of few values: each of them but the first follows one of these characters."""
    return sum(map(text.count, ",[{")) >= MAX_NODES


def quoted(text: str) -> str:
    """The text as a JSON string. A lone surrogate can only be written as an escape."""
    return dumps(text, ensure_ascii=_SURROGATE.search(text) is not None)


def apply_edits(text: str, edits: list[Edit]) -> str:
    """The text with the edits made; they may not overlap."""
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
    if depth > MAX_DEPTH:
        raise NotJson("nested too deep")
    if budget.left <= 0:
        raise TooManyNodes("too many values")
    budget.left -= 1
    first = text[at : at + 1]
    if first == '"':
        value, end = _string(text, at)
        return String(at, end, value)
    if first == "{":
        return _object(text, at, depth, budget)
    if first == "[":
        return _list(text, at, depth, budget)
    scalar = _SCALAR.match(text, at)
    if scalar is None:
        raise NotJson("no value")
    return Scalar(at, scalar.end(), scalar.group() not in ("true", "false", "null"))


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
        at = _skip_space(text, at)
        if text[at : at + 1] != ":":
            raise NotJson("no colon")
        node = _value(text, _skip_space(text, at + 1), depth + 1, budget)
        members.append((key, node))
        at = _skip_space(text, node.end)
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
        node = _value(text, _skip_space(text, at), depth + 1, budget)
        items.append(node)
        at = _skip_space(text, node.end)
        separator = text[at : at + 1]
        if separator == "]":
            return List(start, at + 1, tuple(items))
        if separator != ",":
            raise NotJson("no comma")
        at += 1
