"""Replace the markers in a document with the secrets that they stand for.

A plugin that receives a masked document may return a changed document. Its markers are replaced
with the values of the original document.
"""

import re
from collections import Counter
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
from spawnmesh_core.secret_forms import Secret, marker
from spawnmesh_core.secrets import MaskedValue, mask_with_findings

_ANY_MARKER = re.compile(r"\[\$redacted:(?P<kind>[a-z_]*)(?P<end>\]?)")


class NotRestorable(ValueError):
    """A marker does not identify one secret. The text contains no secret."""


def unmask_document(written: str, original: str, max_bytes: int) -> str:
    """Return the JSON text `written` with each marker replaced by the value it stands for in
    `original`.

    Raises NotRestorable in these cases:

    - The kind of the marker stands for no value or for several values in `original`.
    - The marker is in `original` itself, also in a JSON text of a string.
    - The marker is in a key that `original` does not have, or in a key of a JSON text of a string.
    - The marker has no known kind, or it is cut off.
    - `written` is no JSON value.
    - The result has more than `max_bytes`.
    """
    if "\\" not in written and _ANY_MARKER.search(written) is None:
        return written
    budget = NodeBudget()
    try:
        node = parse_json(written, budget)
        values, keys = _values_by_marker(original)
        restored = _Restoring(values, keys, max_bytes, budget).document(written, node)
    except NotJson as error:
        raise NotRestorable("is not one JSON value of reasonable depth and size") from error
    if len(restored.encode(errors="replace")) > max_bytes:
        raise NotRestorable(f"is larger than {max_bytes} bytes once its markers are replaced")
    return restored


def _values_by_marker(
    original: str,
) -> tuple[Mapping[str, frozenset[str | None]], Mapping[str, frozenset[str | None]]]:
    """Return the values of each kind, and the original of each key with a marker.

    None among them stands for a value that a marker cannot identify.
    """
    values: dict[str, set[str | None]] = {}
    try:
        shown, hidden = mask_with_findings(original)
        before, after = parse_json(original), parse_json(shown)
        written, seen = _markers_in(before), _markers_in(after)
    except NotJson:
        return {}, {}  # A text that cannot be parsed is never shown to a plugin.
    for one in hidden:
        values.setdefault(one.kind, set()).add(_restorable(one))
    put = Counter(str(one.kind) for one in hidden)
    for kind in {*written, *(kind for kind in {*seen, *put} if seen[kind] != put[kind])}:
        values.setdefault(kind, set()).add(None)
    return {kind: frozenset(found) for kind, found in values.items()}, _keys(before, after)


def _keys(before: Node, after: Node) -> Mapping[str, frozenset[str | None]]:
    keys: dict[str, set[str | None]] = {}
    pairs = [(before, after)]
    while pairs:
        one, other = pairs.pop()
        if isinstance(one, Object) and isinstance(other, Object):
            for (hidden, child), (key, shown) in zip(one.members, other.members, strict=True):
                if _ANY_MARKER.search(hidden):
                    keys.setdefault(key, set()).add(None)
                elif key != hidden:
                    keys.setdefault(key, set()).add(hidden)
                pairs.append((child, shown))
        elif isinstance(one, List) and isinstance(other, List):
            pairs += zip(one.items, other.items, strict=True)
    return {key: frozenset(hidden) for key, hidden in keys.items()}


def _restorable(hidden: MaskedValue) -> str | None:
    """Return the value; None if its spelling within the JSON text of a string differs from the
    value.
    """
    return None if hidden.depth and quoted(hidden.value)[1:-1] != hidden.value else hidden.value


def _markers_in(root: Node) -> Counter[str]:
    """Count the markers of each kind in a document, as `_Restoring` finds them.

    Raises TooManyNodes.
    """
    kinds: Counter[str] = Counter()
    budget = NodeBudget()
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if isinstance(node, Object):
            kinds.update(found["kind"] for key, _ in node.members for found in _ANY_MARKER.finditer(key))
            nodes += [child for _, child in node.members]
        elif isinstance(node, List):
            nodes += node.items
        elif isinstance(node, String):
            kinds.update(found["kind"] for found in _ANY_MARKER.finditer(node.value))
            within = _document_in(_ANY_MARKER.sub("", node.value), budget)
            nodes += [within] if within is not None else []
    return kinds


def _document_in(text: str, budget: NodeBudget) -> Node | None:
    """Return the JSON text of a string in which an escape may hide a marker; None if there is none.

    Raises TooManyNodes.
    """
    if "\\" not in text or text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return parse_json(text, budget)
    except TooManyNodes:
        raise
    except NotJson:
        return None


class _Restoring:
    """Replace markers and count the bytes: a short text of many markers must not fill the
    memory.
    """

    def __init__(
        self,
        values: Mapping[str, frozenset[str | None]],
        keys: Mapping[str, frozenset[str | None]],
        max_bytes: int,
        budget: NodeBudget,
    ) -> None:
        self._values = values
        self._keys = keys
        self._max_bytes = max_bytes
        self._budget = budget
        self._put_bytes = 0

    def document(self, text: str, node: Node, *, is_in_string: bool = False) -> str:
        edits: list[Edit] = []
        self._visit(node, edits, {} if is_in_string else self._keys)
        return apply_edits(text, edits)

    def _visit(self, node: Node, edits: list[Edit], keys: Mapping[str, frozenset[str | None]]) -> None:
        if isinstance(node, Object):
            for (key, child), (start, end) in zip(node.members, node.keys, strict=True):
                if _ANY_MARKER.search(key):
                    edits.append(Edit(start, end, quoted(self._key(key, keys))))
                self._visit(child, edits, keys)
        elif isinstance(node, List):
            for item in node.items:
                self._visit(item, edits, keys)
        elif isinstance(node, String):
            restored = self._value(node.value)
            if restored != node.value:
                edits.append(Edit(node.start, node.end, quoted(restored)))

    def _key(self, key: str, keys: Mapping[str, frozenset[str | None]]) -> str:
        hidden = tuple(keys.get(key, ()))
        # Only a key of the original counts: the secret of a value is not restored in a key.
        if len(hidden) != 1 or hidden[0] is None:
            raise NotRestorable("has a marker in a key")
        return self._count(hidden[0])

    def _value(self, value: str) -> str:
        restored = _ANY_MARKER.sub(self._put, value)
        node = _document_in(restored, self._budget)
        return restored if node is None else self.document(restored, node, is_in_string=True)

    def _put(self, found: re.Match[str]) -> str:
        values: Sequence[str | None] = tuple(self._values.get(found["kind"], ()))
        if found.group() not in map(marker, Secret):
            raise NotRestorable("has a marker that was changed")
        if not values:
            raise NotRestorable(f"has {found.group()}, which stood for nothing in the original")
        value = values[0]
        if len(values) > 1 or value is None:
            raise NotRestorable(
                f"has {found.group()}, which does not tell which value in the original it stands for"
            )
        return self._count(value)

    def _count(self, value: str) -> str:
        self._put_bytes += len(value.encode(errors="replace"))
        if self._put_bytes > self._max_bytes:
            raise NotRestorable(f"is larger than {self._max_bytes} bytes once its markers are replaced")
        return value
