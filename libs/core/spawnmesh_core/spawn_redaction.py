"""Remove the content of attachments from the arguments of a spawn, for the transcript and for
plugins.

Only values are replaced; every other byte of the text stays. Texts stay under the keys that are
known to have none of a file's content. All other texts are replaced, since they may be a file in an
unexpected place.
"""

from collections.abc import Callable, Set

from spawnmesh_core.json_text import (
    MAX_DEPTH,
    Edit,
    List,
    Node,
    NodeBudget,
    NotJson,
    Object,
    Scalar,
    String,
    TooManyNodes,
    apply_edits,
    parse_json,
    quoted,
)
from spawnmesh_core.redaction_marker import (
    content_bytes,
    is_marker,
    marker_json,
    refuse_marker,
    refuse_marker_object,
)
from spawnmesh_core.spawn_calls import (
    ARGUMENT_KEYS,
    ATTACHMENT_KEYS,
    CALL_TEXTS,
    FILE_TEXTS,
    has_arguments,
    is_spawn_tool,
    may_hold_spawn_call,
    names_spawn_tool,
    plain_key,
)

_CONTENT_KEYS = frozenset(
    {
        "content",
        "contents",
        "data",
        "text",
        "body",
        "base64",
        "contentbase64",
        "filecontent",
        "filedata",
        "payload",
        "blob",
        "raw",
        "value",
    }
)
_MAX_NUMBER_CHARS = 32  # A longer one may be data.


class Edits(list[Edit]):
    """Changes to a text.

    If `keeps_markers` is set, markers in the text are left from an earlier redaction and stay.
    JSON texts inside its strings share its node budget and its depth. `texts` are the positions of
    strings that are known to be texts, and stay. `calls` are those of objects that are known to be
    tool calls.
    """

    def __init__(
        self, *, keeps_markers: bool = False, budget: NodeBudget | None = None, max_depth: int = MAX_DEPTH
    ) -> None:
        super().__init__()
        self.keeps_markers = keeps_markers
        self.budget = NodeBudget() if budget is None else budget
        self.max_depth = max_depth
        self.texts: Set[int] = frozenset()
        self.calls: Set[int] = frozenset()

    def inner(self) -> "Edits":
        """Return the edits for a text inside this text."""
        return Edits(keeps_markers=self.keeps_markers, budget=self.budget, max_depth=self.max_depth)


Visit = Callable[[str, Node, int, Edits], None]


def redact_arguments(text: str) -> str:
    """Return the arguments of a spawn, a JSON text, as they may be shown. Markers in them stay.

    Raises NotJson, also for a text with too many values.
    """
    edits = Edits(keeps_markers=True)
    redact_in_arguments(text, parse_json(text, edits.budget), 0, edits)
    return apply_edits(text, edits)


def shown_block(tool_name: str, block_json: str) -> str:
    """Return the block of a call as it may be shown: as the transcript keeps it. Markers stay.

    Raises NotJson for a text that may have a spawn and is no JSON object, and TooManyNodes.
    """
    is_spawn = is_spawn_tool(tool_name)
    if not (is_spawn or may_hold_spawn_call(block_json)):
        return block_json
    edits = Edits(keeps_markers=True)
    root = parse_json(block_json, edits.budget)
    if not isinstance(root, Object):
        raise NotJson("not an object")
    if is_spawn:
        redact_call(block_json, root, 0, edits)
    else:
        search_call(block_json, root, edits)
    return apply_edits(block_json, edits)


def redact_call(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Redact a call of the spawn tool: its arguments, and attachments anywhere else in it."""
    check_depth(depth, edits)
    if isinstance(node, Object):
        for key, child in node.members:
            plain = plain_key(key)
            if plain in ATTACHMENT_KEYS:
                _attachments(text, child, depth + 1, edits)
            elif plain in ARGUMENT_KEYS:
                redact_in_arguments(text, child, depth + 1, edits)
            else:
                redact_call(text, child, depth + 1, edits)
    elif isinstance(node, List):
        for item in node.items:
            redact_call(text, item, depth + 1, edits)
    elif isinstance(node, String):
        redact_inside(node, depth, edits, visit=redact_call, or_replace=False)


def search_call(text: str, block: Object, edits: Edits) -> None:
    """Search a call for attachments, wherever in a text it stands."""
    visit = redact_call if names_spawn_tool(block) else _search_batch
    visit(text, block, 0, edits)


def _search_batch(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Search for calls of the spawn tool in a call of another tool that makes several at once.

    Only its arguments are opened: a text that a tool is given to write is no call.
    """
    check_depth(depth, edits)
    if isinstance(node, Object):
        if depth and names_spawn_tool(node):
            _call_of_batch(text, node, depth, edits)
            return
        for key, child in node.members:
            if (
                isinstance(child, String)
                and plain_key(key) in ARGUMENT_KEYS
                and may_hold_spawn_call(child.value)
            ):
                redact_inside(child, depth, edits, visit=_search_batch, or_replace=False)
            else:
                _search_batch(text, child, depth + 1, edits)
    elif isinstance(node, List):
        for item in node.items:
            _search_batch(text, item, depth + 1, edits)


def _call_of_batch(text: str, node: Object, depth: int, edits: Edits) -> None:
    """Redact a call whose arguments may stand beside the tool's name."""
    visit = redact_call if has_arguments(node) else redact_in_arguments
    visit(text, node, depth, edits)


def redact_in_arguments(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Redact arguments, also as JSON in a string, or in a string of a string.

    A string that is no JSON is replaced, since it may be anything.
    """
    check_depth(depth, edits)
    if isinstance(node, Object):
        if edits.keeps_markers and is_marker(node):
            return
        for key, child in node.members:
            plain = plain_key(key)
            if plain in ATTACHMENT_KEYS:
                _attachments(text, child, depth + 1, edits)
            elif plain in CALL_TEXTS and isinstance(child, String):
                redact_inside(child, depth, edits, visit=redact_call, or_replace=False)
            elif not (isinstance(child, String) and is_spawn_tool(child.value)):
                redact_in_arguments(text, child, depth + 1, edits)
    elif isinstance(node, List):
        _list(text, node, depth, edits, visit=redact_in_arguments)
    elif isinstance(node, String):
        redact_inside(node, depth, edits, visit=redact_in_arguments, or_replace=True)
    else:
        _number(text, node, edits)


def _list(text: str, node: List, depth: int, edits: Edits, *, visit: Visit) -> None:
    """Redact a list. A list with a number in it may be bytes."""
    if any(isinstance(item, Scalar) and item.is_number for item in node.items):
        _replace(text, node, edits, is_base64=False)
        return
    for item in node.items:
        visit(text, item, depth + 1, edits)


def _number(text: str, node: Scalar, edits: Edits) -> None:
    if node.is_number and node.end - node.start > _MAX_NUMBER_CHARS:
        _replace(text, node, edits, is_base64=False)


def _attachments(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Redact the value of `attachments`.

    It is a list of items, one item, a map from names to contents, or any of these in a string.
    """
    check_depth(depth, edits)
    if isinstance(node, List):
        for item in node.items:
            _item(text, item, depth + 1, edits)
    elif isinstance(node, Object):
        if edits.keeps_markers and is_marker(node):
            return
        refuse_marker_object(node)
        is_base64 = _says_base64(node)
        for key, child in node.members:
            plain = plain_key(key)
            if plain in _CONTENT_KEYS:
                _replace(text, child, edits, is_base64=is_base64)
            elif not (plain in FILE_TEXTS and isinstance(child, String)) and not isinstance(child, Scalar):
                _item(text, child, depth + 1, edits)
    else:
        _item(text, node, depth, edits)


def _item(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Redact one attachment. If it is no object it is content itself."""
    check_depth(depth, edits)
    if isinstance(node, Object):
        _item_part(text, node, depth, edits)
    elif isinstance(node, List):
        for item in node.items:
            _item(text, item, depth + 1, edits)
    elif isinstance(node, String):
        redact_inside(node, depth, edits, visit=_attachments, or_replace=True)
    else:
        _replace(text, node, edits, is_base64=False)


def _item_part(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Redact a part of an attachment: everything but the texts that describe it."""
    check_depth(depth, edits)
    if isinstance(node, Object):
        if edits.keeps_markers and is_marker(node):
            return
        refuse_marker_object(node)
        is_base64 = _says_base64(node)
        for key, child in node.members:
            plain = plain_key(key)
            if plain in _CONTENT_KEYS:
                _replace(text, child, edits, is_base64=is_base64)
            elif plain in ATTACHMENT_KEYS:
                _attachments(text, child, depth + 1, edits)
            elif plain in FILE_TEXTS and isinstance(child, String):
                _description(text, child, depth + 1, edits)
            else:
                _item_part(text, child, depth + 1, edits)
    elif isinstance(node, List):
        _list(text, node, depth, edits, visit=_item_part)
    elif isinstance(node, String):
        redact_inside(node, depth, edits, visit=_item_part, or_replace=True)
    else:
        _number(text, node, edits)


def _description(text: str, node: String, depth: int, edits: Edits) -> None:
    if node.value.lstrip()[:5].casefold() == "data:":
        _replace(text, node, edits, is_base64=False)  # A data URL carries its content itself.
    else:
        redact_inside(node, depth, edits, visit=_item_part, or_replace=False)


def redact_inside(node: String, depth: int, edits: Edits, *, visit: Visit, or_replace: bool) -> None:
    """Visit the JSON in a string.

    A string that is no JSON is replaced if it must be understood, or if it looks like broken
    arguments. A string that is known to be a text is left alone.
    """
    inner = node.value
    if not inner.strip() or node.start in edits.texts:
        return
    try:
        root = parse_json(inner, edits.budget)
    except TooManyNodes:
        raise
    except NotJson:
        if or_replace or _looks_like_attachments(inner):
            _replace("", node, edits, is_base64=False)
        return
    inner_edits = edits.inner()
    visit(inner, root, depth + 1, inner_edits)
    if inner_edits:
        redacted = apply_edits(inner, inner_edits)
        edits.append(Edit(node.start, node.end, quoted(redacted)))


def _looks_like_attachments(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[", '"') and ("attachment" in text.casefold() or "\\u" in text)


def _says_base64(item: Object) -> bool:
    return any(
        plain_key(key) == "encoding" and isinstance(node, String) and plain_key(node.value) == "base64"
        for key, node in item.members
    )


def _replace(text: str, node: Node, edits: Edits, *, is_base64: bool) -> None:
    if isinstance(node, Scalar) and not node.is_number:
        return
    if edits.keeps_markers and is_marker(node):
        return
    as_written = text[node.start : node.end]
    content = (
        content_bytes(node.value, is_base64=is_base64) if isinstance(node, String) else as_written.encode()
    )
    if not edits.keeps_markers:
        refuse_marker(content)
        _refuse_markers_in(node)
    edits.append(Edit(node.start, node.end, marker_json(content)))


def _refuse_markers_in(node: Node) -> None:
    """Raise ATTACHMENT_CONTENT_IS_MARKER for a marker in a list of parts or in a part."""
    if isinstance(node, Object):
        refuse_marker_object(node)
        for _, child in node.members:
            _refuse_markers_in(child)
    elif isinstance(node, List):
        for item in node.items:
            _refuse_markers_in(item)


def check_depth(depth: int, edits: Edits) -> None:
    """Raise NotJson below the depth that may be searched."""
    if depth > edits.max_depth:
        raise NotJson("nested too deep")
