"""Takes the content of handed-over attachments out of calls of the spawn tool, before anything is stored.

Only the values that carry content are replaced; every other byte of the block stays. What may carry content and cannot be understood is
replaced as a whole.
"""

import re
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
)

from spawnmesh_transcript.domain.line_parts import LineParts, parts_of
from spawnmesh_transcript.domain.marker import (
    content_bytes,
    is_marker,
    marker_json,
    refuse_marker,
    refuse_marker_object,
)
from spawnmesh_transcript.domain.storable_json import LEVELS_OF_LINES, require_object, require_storable_depth

SPAWN_TOOLS = frozenset({"sessions_spawn", "spawn_session"})

# Keys are compared without case and punctuation: `mimeType`, `mime_type` and `MIME-Type` are one.
_NAME_KEYS = frozenset({"name", "tool", "toolname", "function", "functionname", "recipientname"})
_ARGUMENT_KEYS = frozenset(
    {
        "arguments",
        "input",
        "args",
        "params",
        "parameters",
        "argumentsjson",
        "inputjson",
        "partialjson",
        "rawarguments",
        "rawinput",
    }
)
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
_NAMESPACE = "functions."  # Which models put before a name when they make several calls at once.
_PUNCTUATION = re.compile(r"[\W_]+")


class Edits(list[Edit]):
    """What is to be changed in a text. With `keeps_markers`, markers in it are what is left of an earlier redaction, and stay.

    The JSON texts in its strings are read from the same budget as it is, and are as deep as they are in all. `parts` are what is known of it
    where it is a line of a session file.
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
        """For a text inside the text."""
        return Edits(keeps_markers=self.keeps_markers, budget=self.budget, max_depth=self.max_depth)


_Visit = Callable[[str, Node, int, Edits], None]


def redact_block(tool_name: str, block_json: str) -> str:
    """The block as it may be stored; the same text where there is nothing to take out.

    Raises NotJson for a text that is not one JSON object or too deeply nested to be taken in again, TooManyNodes, and
    ATTACHMENT_CONTENT_IS_MARKER.
    """
    if not (_is_spawn_tool(tool_name) or may_hold_spawn_call(block_json)):
        require_object(block_json)
        return block_json
    edits = Edits()
    root = parse_json(block_json, edits.budget)
    if not isinstance(root, Object):
        raise NotJson("not an object")
    require_storable_depth(block_json)
    if _is_spawn_tool(tool_name):
        _search(block_json, root, 0, edits)
    else:
        _search_call(block_json, root, edits)
    return apply_edits(block_json, edits)


def redact_line(text: str, max_values: int = MAX_NODES) -> str:
    """A line of a session file as it may be stored: its calls are redacted as those of an append are, and its texts are left alone.

    The rest of it, or all of it where its shape is unknown, is redacted as a document is. A well-formed marker is left where it is: the line may
    have been stored before. Raises TooManyNodes beyond so many values, and NotJson, also for a text that is no object.
    """
    edits = Edits(keeps_markers=True, budget=NodeBudget(max_values), max_depth=MAX_DEPTH + LEVELS_OF_LINES)
    root = parse_json(text, edits.budget)
    if not isinstance(root, Object):
        raise NotJson("not an object")
    edits.parts = parts_of(root)
    _search_blocks(text, root, 0, edits)
    return apply_edits(text, edits)


def redact_document(text: str, *, is_object: bool) -> str:
    """A JSON text of unknown shape as it may be stored: whatever in it calls the spawn tool is redacted as such a block is.

    Raises TooManyNodes and NotJson, also for a text that is no object where `is_object` asks for one, or that is too deep to be taken in again,
    and ATTACHMENT_CONTENT_IS_MARKER.
    """
    edits = Edits()
    root = parse_json(text, edits.budget)
    require_storable_depth(text)
    if is_object and not isinstance(root, Object):
        raise NotJson("not an object")
    if not may_hold_spawn_call(text):
        return text
    _search_blocks(text, root, 0, edits)
    return apply_edits(text, edits)


def _search_blocks(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Looks for calls of the spawn tool anywhere."""
    _check_depth(depth, edits)
    if isinstance(node, Object):
        if node.start in edits.parts.calls:
            _search_call(text, node, edits)
            return
        if _names_spawn_tool(node):
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
    """Looks for what a call carries, wherever in a text it stands."""
    visit = _search if _names_spawn_tool(block) else _search_batch
    visit(text, block, 0, edits)


def _search_batch(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Looks for calls of the spawn tool in a call of another that makes several at once.

    Of its texts only those are opened that are arguments: what a tool is given to write down is no call.
    """
    _check_depth(depth, edits)
    if isinstance(node, Object):
        if depth and _names_spawn_tool(node):
            _search(text, node, depth, edits)
            return
        for key, child in node.members:
            if isinstance(child, String) and _plain(key) in _ARGUMENT_KEYS and may_hold_spawn_call(child.value):
                _inside(child, depth, edits, visit=_search_batch, or_replace=False)
            else:
                _search_batch(text, child, depth + 1, edits)
    elif isinstance(node, List):
        for item in node.items:
            _search_batch(text, item, depth + 1, edits)


def may_hold_spawn_call(text: str) -> bool:
    """A cheap look that is never wrong about a JSON text without spawn calls: most are calls of other tools and need no search."""
    return "\\u" in text or "spawn" in text.casefold()


def _is_spawn_tool(name: str) -> bool:
    return name.strip().casefold().removeprefix(_NAMESPACE) in SPAWN_TOOLS


def _names_spawn_tool(block: Object) -> bool:
    """Whether the block names the tool itself, or in the object it wraps: `{"function": {"name": …}}`."""
    for key, node in block.members:
        plain = _plain(key)
        if plain in _NAME_KEYS and isinstance(node, String) and _is_spawn_tool(node.value):
            return True
        if isinstance(node, Object) and plain not in _ARGUMENT_KEYS:
            for inner_key, inner in node.members:
                if _plain(inner_key) in _NAME_KEYS and isinstance(inner, String) and _is_spawn_tool(inner.value):
                    return True
    return False


def _plain(key: str) -> str:
    return _PUNCTUATION.sub("", key.casefold())


def _search(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Looks for attachments anywhere."""
    _check_depth(depth, edits)
    if isinstance(node, Object):
        for key, child in node.members:
            plain = _plain(key)
            if plain in _ATTACHMENT_KEYS:
                _attachments(text, child, depth + 1, edits)
            elif plain in _ARGUMENT_KEYS:
                _arguments(text, child, depth + 1, edits)
            else:
                _search(text, child, depth + 1, edits)
    elif isinstance(node, List):
        for item in node.items:
            _search(text, item, depth + 1, edits)
    elif isinstance(node, String):
        _inside(node, depth, edits, visit=_search, or_replace=False)


def _arguments(text: str, node: Node, depth: int, edits: Edits) -> None:
    """Arguments, also as JSON in a string, or in a string of a string. A string that is no JSON may be anything."""
    if isinstance(node, String):
        _inside(node, depth, edits, visit=_arguments, or_replace=True)
    else:
        _search(text, node, depth, edits)


def _attachments(text: str, node: Node, depth: int, edits: Edits) -> None:
    """The value of `attachments`: a list of items, one item, a map from names to contents, or any of these in a string."""
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
            plain = _plain(key)
            if plain in _CONTENT_KEYS:
                _replace(text, child, edits, is_base64=is_base64)
            elif not isinstance(child, Scalar) and (plain not in _METADATA_KEYS or not isinstance(child, String)):
                _item(text, child, depth + 1, edits)
    else:
        _item(text, node, depth, edits)


def _item(text: str, node: Node, depth: int, edits: Edits) -> None:
    """One attachment. One that is no object is taken for its content."""
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
    """Something in an attachment: its content goes, wherever it is, and the rest stays."""
    _check_depth(depth, edits)
    if isinstance(node, Object):
        if edits.keeps_markers and is_marker(node):
            return
        refuse_marker_object(node)
        is_base64 = _says_base64(node)
        for key, child in node.members:
            plain = _plain(key)
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
        _replace(text, node, edits, is_base64=False)  # A URL that is itself what it leads to.
    elif isinstance(node, String):
        _inside(node, depth, edits, visit=_item_part, or_replace=False)


def _inside(node: String, depth: int, edits: Edits, *, visit: _Visit, or_replace: bool) -> None:
    """Visits the JSON in a string. One that is none is replaced where it must be understood, or where it looks like broken arguments.

    A string that is known to be a text is left alone.
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
        _plain(key) == "encoding" and isinstance(node, String) and _plain(node.value) == "base64"
        for key, node in item.members
    )


def _replace(text: str, node: Node, edits: Edits, *, is_base64: bool) -> None:
    if isinstance(node, Scalar) and not node.is_number:
        return
    if edits.keeps_markers and is_marker(node):
        return
    as_written = text[node.start : node.end]
    content = content_bytes(node.value, is_base64=is_base64) if isinstance(node, String) else as_written.encode()
    if not edits.keeps_markers:
        refuse_marker(content)
        _refuse_markers_in(node)
    edits.append(Edit(node.start, node.end, marker_json(content)))


def _refuse_markers_in(node: Node) -> None:
    """Content may also be a list of parts, or a part: a marker is none of them."""
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
