"""Remove the content of attachments from calls of the spawn tool, before anything is stored.

Only the values that carry content are replaced; every other byte of the block stays. A value that
may carry content and cannot be understood is replaced as a whole.
"""

from collections.abc import Callable

from spawnmesh_core.json_text import (
    MAX_DEPTH,
    MAX_NODES,
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
    require_few_nodes,
)

from spawnmesh_transcript.domain.line_parts import LineParts, parts_of
from spawnmesh_transcript.domain.marker import (
    content_bytes,
    is_marker,
    marker_json,
    refuse_marker,
    refuse_marker_object,
)
from spawnmesh_transcript.domain.spawn_calls import (
    ARGUMENT_KEYS,
    is_spawn_tool,
    may_hold_spawn_call,
    names_spawn_tool,
    plain_key,
)
from spawnmesh_transcript.domain.storable_json import LEVELS_OF_LINES, require_json, require_storable_depth

_ATTACHMENT_KEYS = frozenset({"attachments", "attachment", "inlineattachments"})
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
_METADATA_KEYS = frozenset(
    {
        "name",
        "filename",
        "path",
        "encoding",
        "mimetype",
        "contenttype",
        "type",
        "size",
        "bytes",
        "sha256",
        "uploadid",
        "id",
        "label",
        "description",
    }
)


class Edits(list[Edit]):
    """Changes to a text.

    If `keeps_markers` is set, markers in the text are left from an earlier redaction and stay.
    JSON texts inside its strings share its node budget and its depth. `parts` are the known parts
    of a session file's line.
    """

    def __init__(
        self, *, keeps_markers: bool = False, budget: NodeBudget | None = None, max_depth: int = MAX_DEPTH
    ) -> None:
        super().__init__()
        self.keeps_markers = keeps_markers
        self.budget = NodeBudget() if budget is None else budget
        self.max_depth = max_depth
        self.parts = LineParts()

    def inner(self) -> "Edits":
        """Return the edits for a text inside this text."""
        return Edits(keeps_markers=self.keeps_markers, budget=self.budget, max_depth=self.max_depth)


_Visit = Callable[[str, Node, int, Edits], None]


def redact_block(tool_name: str, block_json: str) -> str:
    """Return the block as it may be stored: the same text if there is nothing to remove.

    Raises NotJson for a text that is not one JSON object, or is nested too deep to be imported
    again, TooManyNodes, and ATTACHMENT_CONTENT_IS_MARKER.
    """
    if not (is_spawn_tool(tool_name) or may_hold_spawn_call(block_json)):
        require_json(block_json, is_object=True)
        return block_json
    require_few_nodes(block_json)
    edits = Edits()
    root = parse_json(block_json, edits.budget)
    if not isinstance(root, Object):
        raise NotJson("not an object")
    require_storable_depth(block_json)
    if is_spawn_tool(tool_name):
        _search(block_json, root, 0, edits)
    else:
        _search_call(block_json, root, edits)
    return apply_edits(block_json, edits)


def redact_line(
    text: str, max_values: int = MAX_NODES, parts: Callable[[Object], LineParts] = parts_of
) -> str:
    """Return a line of a session file as it may be stored. `parts` finds its known parts.

    Its calls are redacted like those of an append, and its texts are left alone. The rest of the
    line is redacted like a document, and so is a line of unknown shape. A well-formed marker
    stays, since the line may have been stored before. Raises TooManyNodes beyond `max_values`, and
    NotJson, also for a text that is no object.
    """
    require_few_nodes(text, max_values)
    edits = Edits(keeps_markers=True, budget=NodeBudget(max_values), max_depth=MAX_DEPTH + LEVELS_OF_LINES)
    root = parse_json(text, edits.budget)
    if not isinstance(root, Object):
        raise NotJson("not an object")
    edits.parts = parts(root)
    _search_blocks(text, root, 0, edits)
    return apply_edits(text, edits)


def redact_document(text: str, *, is_object: bool) -> str:
    """Return a JSON text of unknown shape as it may be stored: calls of the spawn tool in it are
    redacted like a block.

    Raises TooManyNodes and NotJson, also if `is_object` is set and the text is no object, or if it
    is nested too deep to be imported again, and ATTACHMENT_CONTENT_IS_MARKER.
    """
    require_json(text, is_object=is_object)
    if not may_hold_spawn_call(text):
        return text
    edits = Edits()
    root = parse_json(text, edits.budget)
    _search_blocks(text, root, 0, edits)
    return apply_edits(text, edits)


def _search_blocks(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Search for calls of the spawn tool anywhere."""
    _check_depth(depth, edits)
    if isinstance(node, Object):
        if node.start in edits.parts.calls:
            _search_call(text, node, edits)
            return
        if names_spawn_tool(node):
            _search(text, node, depth, edits)
            return
        for _, child in node.members:
            _search_blocks(text, child, depth + 1, edits)
    elif isinstance(node, List):
        for item in node.items:
            _search_blocks(text, item, depth + 1, edits)
    elif isinstance(node, String) and may_hold_spawn_call(node.value):
        _inside(node, depth, edits, visit=_search_blocks, or_replace=False)


def _search_call(text: str, block: Object, edits: Edits) -> None:
    """Search a call for attachments, wherever in a text it stands."""
    visit = _search if names_spawn_tool(block) else _search_batch
    visit(text, block, 0, edits)


def _search_batch(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Search for calls of the spawn tool in a call of another tool that makes several at once.

    Only its arguments are opened: a text that a tool is given to write is no call.
    """
    _check_depth(depth, edits)
    if isinstance(node, Object):
        if depth and names_spawn_tool(node):
            _search(text, node, depth, edits)
            return
        for key, child in node.members:
            if (
                isinstance(child, String)
                and plain_key(key) in ARGUMENT_KEYS
                and may_hold_spawn_call(child.value)
            ):
                _inside(child, depth, edits, visit=_search_batch, or_replace=False)
            else:
                _search_batch(text, child, depth + 1, edits)
    elif isinstance(node, List):
        for item in node.items:
            _search_batch(text, item, depth + 1, edits)


def _search(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Search for attachments anywhere."""
    _check_depth(depth, edits)
    if isinstance(node, Object):
        for key, child in node.members:
            plain = plain_key(key)
            if plain in _ATTACHMENT_KEYS:
                _attachments(text, child, depth + 1, edits)
            elif plain in ARGUMENT_KEYS:
                _arguments(text, child, depth + 1, edits)
            else:
                _search(text, child, depth + 1, edits)
    elif isinstance(node, List):
        for item in node.items:
            _search(text, item, depth + 1, edits)
    elif isinstance(node, String):
        _inside(node, depth, edits, visit=_search, or_replace=False)


def _arguments(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Search arguments, also as JSON in a string, or in a string of a string.

    A string that is no JSON is replaced, since it may be anything.
    """
    if isinstance(node, String):
        _inside(node, depth, edits, visit=_arguments, or_replace=True)
    else:
        _search(text, node, depth, edits)


def _attachments(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Redact the value of `attachments`.

    It is a list of items, one item, a map from names to contents, or any of these in a string.
    """
    _check_depth(depth, edits)
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
            elif not isinstance(child, Scalar) and (
                plain not in _METADATA_KEYS or not isinstance(child, String)
            ):
                _item(text, child, depth + 1, edits)
    else:
        _item(text, node, depth, edits)


def _item(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Redact one attachment. If it is no object it is content itself."""
    _check_depth(depth, edits)
    if isinstance(node, Object):
        _item_part(text, node, depth, edits)
    elif isinstance(node, List):
        for item in node.items:
            _item(text, item, depth + 1, edits)
    elif isinstance(node, String):
        _inside(node, depth, edits, visit=_attachments, or_replace=True)
    else:
        _replace(text, node, edits, is_base64=False)


def _item_part(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Redact a part of an attachment: replace its content, wherever it is, and keep the rest."""
    _check_depth(depth, edits)
    if isinstance(node, Object):
        if edits.keeps_markers and is_marker(node):
            return
        refuse_marker_object(node)
        is_base64 = _says_base64(node)
        for key, child in node.members:
            plain = plain_key(key)
            if plain in _CONTENT_KEYS:
                _replace(text, child, edits, is_base64=is_base64)
            elif plain in _ATTACHMENT_KEYS:
                _attachments(text, child, depth + 1, edits)
            else:
                _item_part(text, child, depth + 1, edits)
    elif isinstance(node, List):
        for item in node.items:
            _item_part(text, item, depth + 1, edits)
    elif isinstance(node, String) and node.value.lstrip()[:5].casefold() == "data:":
        _replace(text, node, edits, is_base64=False)  # A data URL carries its content itself.
    elif isinstance(node, String):
        _inside(node, depth, edits, visit=_item_part, or_replace=False)


def _inside(node: String, depth: int, edits: Edits, *, visit: _Visit, or_replace: bool) -> None:
    """Visit the JSON in a string.

    A string that is no JSON is replaced if it must be understood, or if it looks like broken
    arguments. A string that is known to be a text is left alone.
    """
    inner = node.value
    if not inner.strip() or node.start in edits.parts.texts:
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


def _check_depth(depth: int, edits: Edits) -> None:
    if depth > edits.max_depth:
        raise NotJson("nested too deep")
