"""Convert lines of session files to entry bodies: the known parts become typed, the rest of the
line is kept as it is.
"""

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, is_id
from spawnmesh_core.json_text import List, Node, Object, Scalar, String

from spawnmesh_transcript.domain.line_parts import CALL_IDS, CALL_TYPES
from spawnmesh_transcript.operations.bodies.well_formed import check_message
from spawnmesh_transcript.operations.session_files.drafts import EntryDraft, UnknownShape, storable
from spawnmesh_transcript.operations.session_files.source_lines import with_gaps

_ROLES = {
    "user": content_pb.ROLE_USER,
    "assistant": content_pb.ROLE_ASSISTANT,
    "toolResult": content_pb.ROLE_TOOL_RESULT,
    "tool_result": content_pb.ROLE_TOOL_RESULT,
    "bashExecution": content_pb.ROLE_BASH_EXECUTION,
    "bash_execution": content_pb.ROLE_BASH_EXECUTION,
    "custom": content_pb.ROLE_CUSTOM,
    "hookMessage": content_pb.ROLE_CUSTOM,
}
_LABELS = {"superseded": pb.LABEL_KIND_SUPERSEDED, "final": pb.LABEL_KIND_FINAL}
_RESULT_IDS = ("toolCallId", "toolUseId", "tool_call_id", "tool_use_id", "callId", "call_id")
_MAX_BLOCKS = 256
_MAX_NAME_BYTES = 256
_MAX_TYPE_BYTES = 128
_MAX_PROVIDER_BYTES = 64


def entry_of(
    line: str, root: Object, source_id: str, kept_entry_id: str, *, is_exact: bool = True
) -> pb.EntryBody:
    """Return the entry of a line, an opaque one if the contract has no shape for it.

    `kept_entry_id` is the id of the entry that a summary or a label refers to. If `is_exact` is
    set, the line is restored byte for byte.
    """
    kind = _string(root, "type")
    draft = EntryDraft(line, is_exact=is_exact)
    try:
        _fill(draft, kind, root, line, kept_entry_id, is_ours=is_id(IdKind.ENTRY, source_id))
    except (UnknownShape, MeshError):
        return opaque_of(line, root, source_id)
    return draft.finish(source_id)


def copy_of(line: str, root: Object, source_id: str) -> pb.EntryBody:
    """Return a message that was delivered as a mirror, which no model reads."""
    said = entry_of(line, root, source_id, "")
    if not said.HasField("message"):
        return said
    body = opaque_of(line, root, source_id)
    body.mirror.message.CopyFrom(said.message)
    body.source.CopyFrom(with_gaps(line, source_id, ()))
    body.source.is_exact = True
    return body


def opaque_of(line: str, root: Object, source_id: str, kind: str = "") -> pb.EntryBody:
    """Return the line as an opaque entry of this type, by default of the type in the line."""
    body = pb.EntryBody(source=with_gaps(line, source_id, [(root.start, root.end)]))
    body.source.is_exact = True
    body.opaque.type = _cut(kind or _string(root, "type"), _MAX_TYPE_BYTES)
    body.opaque.entry_json = line[root.start : root.end]
    return body


def header_of(line: str, root: Object, source_id: str, header: pb.Header) -> pb.EntryBody:
    """Return the transcript's header, which keeps the file's header line."""
    body = pb.EntryBody(header=header, source=with_gaps(line, source_id, ()))
    body.source.is_exact = True
    return body


def _fill(
    draft: EntryDraft, kind: str, root: Object, line: str, kept_entry_id: str, *, is_ours: bool
) -> None:
    match kind:
        case "message":
            message = root.member("message")
            if not isinstance(message, Object):
                raise UnknownShape
            _message(draft, message, line, _ROLES.get(_string(message, "role")))
        case "custom_message":
            _message(draft, root, line, content_pb.ROLE_CUSTOM)
        case "model_change":
            model = _model(root, "modelId")
            if not model:
                raise UnknownShape
            draft.body.model_change.model = model
        case "thinking_level_change":
            level = _string(root, "thinkingLevel")
            if not level.strip() or len(level.encode()) > 64:
                raise UnknownShape
            draft.body.model_change.thinking_level = level
        case "compaction":
            compaction = draft.body.compaction
            compaction.summary = draft.text(root.member("summary"))
            compaction.first_kept_entry_id = kept_entry_id
            compaction.token_count_before = max(0, _integer(root, "tokensBefore", line) or 0)
            compaction.token_count_after = max(0, _integer(root, "tokensAfter", line) or 0)
            if not compaction.summary:
                raise UnknownShape
        case "branch_summary":
            draft.body.branch_summary.summary = draft.text(root.member("summary"))
            draft.body.branch_summary.from_entry_id = kept_entry_id
            if not draft.body.branch_summary.summary:
                raise UnknownShape
        case "label":
            label = _LABELS.get(_string(root, "label"))
            if (
                label is None or not kept_entry_id or not is_ours
            ):  # Labels of other programs may mean anything.
                raise UnknownShape
            draft.body.label.kind, draft.body.label.entry_id = label, kept_entry_id
        case "custom":
            custom = draft.body.custom
            custom.custom_type = _cut(_string(root, "customType"), _MAX_TYPE_BYTES)
            data = root.member("data")
            if not custom.custom_type:
                raise UnknownShape
            if data is not None:
                custom.data_json = line[data.start : data.end]
            draft.spans.append((data.start, data.end) if data is not None else None)
        case _:
            raise UnknownShape


def _message(draft: EntryDraft, node: Object, line: str, role: "content_pb.Role.ValueType | None") -> None:
    if role is None:
        raise UnknownShape
    message = draft.body.message
    message.role = role
    if role == content_pb.ROLE_BASH_EXECUTION:
        output = node.member("output")
        if output is not None:
            draft.add_text(output)
    else:
        _content(draft, node.member("content"), line)
    match role:
        case content_pb.ROLE_TOOL_RESULT:
            message.tool_call_id = _first_string(node, _RESULT_IDS)
            message.tool_name = _cut(
                _string(node, "toolName") or _string(node, "tool_name"), _MAX_NAME_BYTES
            ).strip()
            message.is_error = _is_true(node, line, "isError") or _is_true(node, line, "is_error")
        case content_pb.ROLE_ASSISTANT:
            message.model = _model(node, "model")
            message.image_provider = _cut(_string(node, "imageProvider"), _MAX_PROVIDER_BYTES)
        case content_pb.ROLE_CUSTOM:
            message.custom_type = _cut(_string(node, "customType"), _MAX_TYPE_BYTES)
        case content_pb.ROLE_BASH_EXECUTION:
            execution = message.bash_execution
            execution.command = draft.text(node.member("command"))
            execution.is_cancelled = _is_true(node, line, "cancelled")
            execution.is_truncated = _is_true(node, line, "truncated")
            exit_code = _integer(node, "exitCode", line)
            if exit_code is not None:
                execution.exit_code = exit_code
            if not execution.command:
                raise UnknownShape
    if len(message.tool_call_id.encode()) > _MAX_NAME_BYTES:
        raise UnknownShape
    check_message(message, "message")


def _content(draft: EntryDraft, node: Node | None, line: str) -> None:
    if isinstance(node, String):
        draft.add_text(node)
    elif isinstance(node, List):
        if len(node.items) > _MAX_BLOCKS:
            raise UnknownShape
        for item in node.items:
            if isinstance(item, Object):
                _block(draft, item, line)
            elif isinstance(item, String):
                draft.add_text(item)


def _block(draft: EntryDraft, block: Object, line: str) -> None:
    """Add a content block. Blocks of other types stay in the line, and no model reads them."""
    kind = _string(block, "type")
    text = block.member("text")
    if kind == "text" and isinstance(text, String):
        draft.add_text(text)
    elif kind == "thinking" and isinstance(block.member("thinking"), String):
        draft.add_thinking(
            block.member("thinking"), block.member("thinkingSignature") or block.member("signature")
        )
    elif kind == "image":
        _image(draft, block)
    elif kind in CALL_TYPES:
        draft.add_call(block, _first_string(block, CALL_IDS), _string(block, "name"))


def _image(draft: EntryDraft, block: Object) -> None:
    source = block.member("source")
    holder = source if isinstance(source, Object) else block
    draft.add_image(_string(holder, "mimeType") or _string(holder, "media_type"), holder.member("data"))


def _string(node: Object, name: str) -> str:
    child = node.member(name)
    return storable(child.value) if isinstance(child, String) else ""


def _first_string(node: Object, names: tuple[str, ...]) -> str:
    return next((text for name in names if (text := _string(node, name))), "")


def _is_true(node: Object, line: str, name: str) -> bool:
    child = node.member(name)
    return isinstance(child, Scalar) and line[child.start : child.end] == "true"


def _integer(node: Object, name: str, line: str) -> int | None:
    child = node.member(name)
    if not isinstance(child, Scalar) or not child.is_number or child.end - child.start > 10:
        return None
    text = line[child.start : child.end]
    value = int(text) if text.lstrip("-").isdigit() else None
    return value if value is not None and -(2**31) <= value < 2**31 else None


def _model(node: Object, name: str) -> str:
    provider, model = _string(node, "provider"), _string(node, name)
    named = f"{provider}/{model}" if provider and model else model
    return named if len(named.encode()) <= _MAX_NAME_BYTES else ""


def _cut(text: str, max_bytes: int) -> str:
    return text.encode()[:max_bytes].decode("utf-8", "ignore")
