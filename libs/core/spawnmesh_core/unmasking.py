"""Puts secrets back where a document that somebody wrote who was shown markers has a marker in place of one."""

import re
from collections.abc import Mapping, Sequence

from spawnmesh_core.json_text import (
    Edit,
    List,
    Node,
    NodeBudget,
    NotJson,
    Object,
    String,
    TooManyNodes,
    apply_edits,
    parse_json,
    quoted,
)
from spawnmesh_core.secrets import Hidden, Secret, hidden_in, marker, mask_document

_ANY_MARKER = re.compile(r"\[\$redacted:(?P<kind>[a-z_]*)(?P<end>\]?)")


class NotRestorable(ValueError):
    """A marker does not tell which secret it stands for; the text says so without any of them."""


def unmask_document(written: str, original: str, max_bytes: int) -> str:
    """The JSON text `written`, where each marker is replaced by what it stood for when the JSON text `original` was shown masked.

    Raises NotRestorable for a marker whose kind stood for none or for several values in `original`, for one that was in `original` itself, for
    one in a key that was not shown so, one of no kind, one that was cut, for what is no JSON, and where the result had more than `max_bytes`.
    """
    if "\\" not in written and _ANY_MARKER.search(written) is None:
        return written
    budget = NodeBudget()
    try:
        node = parse_json(written, budget)
        restored = _Restoring(_values(original), _keys(original), max_bytes, budget).document(written, node)
    except NotJson as error:
        raise NotRestorable("is not one JSON value of reasonable depth and size") from error
    if len(restored.encode(errors="replace")) > max_bytes:
        raise NotRestorable(f"is larger than {max_bytes} bytes once its markers are replaced")
    return restored


def _values(original: str) -> Mapping[str, frozenset[str | None]]:
    """The values of each kind; None among them stands for one that a marker cannot name."""
    values: dict[str, set[str | None]] = {}
    try:
        hidden, node = hidden_in(original), parse_json(original)
    except NotJson:
        return {}  # Which was never shown, as nothing of it was understood.
    for one in hidden:
        values.setdefault(one.kind, set()).add(_restorable(one))
    for kind in _written_markers(node):
        values.setdefault(kind, set()).add(None)
    return {kind: frozenset(found) for kind, found in values.items()}


def _keys(original: str) -> Mapping[str, frozenset[str]]:
    """What stood where a key was shown with a marker; several for one that was shown for more than one."""
    keys: dict[str, set[str]] = {}
    try:
        shown = mask_document(original)
        pairs = [(parse_json(shown), parse_json(original))] if shown != original else []
    except NotJson:
        return {}
    while pairs:
        after, before = pairs.pop()
        if isinstance(after, Object) and isinstance(before, Object):
            for (key, child), (hidden, other) in zip(after.members, before.members, strict=True):
                if key != hidden:
                    keys.setdefault(key, set()).add(hidden)
                pairs.append((child, other))
        elif isinstance(after, List) and isinstance(before, List):
            pairs += zip(after.items, before.items, strict=True)
    return {key: frozenset(hidden) for key, hidden in keys.items()}


def _restorable(hidden: Hidden) -> str | None:
    """None for a value that is spelled differently within the JSON of a string: outside of it, it would be another text."""
    return None if hidden.depth and quoted(hidden.value)[1:-1] != hidden.value else hidden.value


def _written_markers(node: Node) -> set[str]:
    """The kinds of the markers that are in a document before it is masked."""
    if isinstance(node, Object):
        return {kind for key, child in node.members for kind in _written_in(key) | _written_markers(child)}
    if isinstance(node, List):
        return {kind for item in node.items for kind in _written_markers(item)}
    return _written_in(node.value) if isinstance(node, String) else set()


def _written_in(text: str) -> set[str]:
    return {found["kind"] for found in _ANY_MARKER.finditer(text)}


class _Restoring:
    """Counts what it puts in: a short text of many markers must not become one that fills the memory."""

    def __init__(
        self,
        values: Mapping[str, frozenset[str | None]],
        keys: Mapping[str, frozenset[str]],
        max_bytes: int,
        budget: NodeBudget,
    ) -> None:
        self._values = values
        self._keys = keys
        self._max_bytes = max_bytes
        self._budget = budget
        self._put_bytes = 0

    def document(self, text: str, node: Node) -> str:
        edits: list[Edit] = []
        self._visit(node, edits)
        return apply_edits(text, edits)

    def _visit(self, node: Node, edits: list[Edit]) -> None:
        if isinstance(node, Object):
            for (key, child), (start, end) in zip(node.members, node.keys, strict=True):
                if _ANY_MARKER.search(key):
                    edits.append(Edit(start, end, quoted(self._key(key))))
                self._visit(child, edits)
        elif isinstance(node, List):
            for item in node.items:
                self._visit(item, edits)
        elif isinstance(node, String):
            restored = self._value(node.value)
            if restored != node.value:
                edits.append(Edit(node.start, node.end, quoted(restored)))

    def _key(self, key: str) -> str:
        hidden = tuple(self._keys.get(key, ()))
        if len(hidden) != 1:  # A secret that was shown in a value is none for a key.
            raise NotRestorable("has a marker in a key")
        return self._count(hidden[0])

    def _value(self, value: str) -> str:
        restored = _ANY_MARKER.sub(self._put, value)
        if "\\" not in restored or restored.lstrip()[:1] not in ("{", "["):
            return restored
        try:
            node = parse_json(restored, self._budget)  # JSON in a string, where an escape may hide a marker.
        except TooManyNodes:
            raise
        except NotJson:
            return restored
        return self.document(restored, node)

    def _put(self, found: re.Match[str]) -> str:
        values: Sequence[str | None] = tuple(self._values.get(found["kind"], ()))
        if found.group() not in map(marker, Secret):
            raise NotRestorable("has a marker that was changed")
        if not values:
            raise NotRestorable(f"has {found.group()}, which stood for nothing in the original")
        value = values[0]
        if len(values) > 1 or value is None:
            raise NotRestorable(f"has {found.group()}, which does not tell which value in the original it stands for")
        return self._count(value)

    def _count(self, value: str) -> str:
        self._put_bytes += len(value.encode(errors="replace"))
        if self._put_bytes > self._max_bytes:
            raise NotRestorable(f"is larger than {self._max_bytes} bytes once its markers are replaced")
        return value
