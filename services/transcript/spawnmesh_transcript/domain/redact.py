"""Remove the content of attachments from calls of the spawn tool, before anything is stored."""

from collections.abc import Callable

from spawnmesh_core.json_text import (
    MAX_DEPTH,
    MAX_NODES,
    List,
    Node,
    NodeBudget,
    NotJson,
    Object,
    String,
    apply_edits,
    parse_json,
    require_few_nodes,
)
from spawnmesh_core.spawn_calls import is_spawn_tool, may_hold_spawn_call, names_spawn_tool
from spawnmesh_core.spawn_redaction import Edits, check_depth, redact_call, redact_inside, search_call

from spawnmesh_transcript.domain.line_parts import LineParts, parts_of
from spawnmesh_transcript.domain.storable_json import LEVELS_OF_LINES, require_json, require_storable_depth


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
        redact_call(block_json, root, 0, edits)
    else:
        search_call(block_json, root, edits)
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
    found = parts(root)
    edits.texts, edits.calls = found.texts, found.calls
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
    check_depth(depth, edits)
    if isinstance(node, Object):
        if node.start in edits.calls:
            search_call(text, node, edits)
            return
        if names_spawn_tool(node):
            redact_call(text, node, depth, edits)
            return
        for _, child in node.members:
            _search_blocks(text, child, depth + 1, edits)
    elif isinstance(node, List):
        for item in node.items:
            _search_blocks(text, item, depth + 1, edits)
    elif isinstance(node, String) and may_hold_spawn_call(node.value):
        redact_inside(node, depth, edits, visit=_search_blocks, or_replace=False)
