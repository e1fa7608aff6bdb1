"""Convert lines of session files to entry bodies: the known parts become typed, the rest of the
line is kept as it is.
"""

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from dataclasses import dataclass, field

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, is_id
from spawnmesh_core.json_text import List, Node, Object, Scalar, String

from spawnmesh_transcript.domain.line_parts import CALL_IDS, CALL_TYPES
from spawnmesh_transcript.operations.bodies.well_formed import check_message
from spawnmesh_transcript.operations.session_files.source_lines import with_gaps

Span = tuple[int, int] | None

_ROLES = {
    "user": content_pb.ROLE_USER,
    "assistant": content_pb.ROLE_ASSISTANT,
    "toolResult": content_pb.ROLE_TOOL_RESULT,
    "tool_result": content_pb.ROLE_TOOL_RESULT,
    "bashExecution": content_pb.ROLE_BASH_EXECUTION,
    "bash_execution": content_pb.ROLE_BASH_EXECUTION,
    "custom": content_pb.ROLE_CUSTOM,
}
_LABELS = {"superseded": pb.LABEL_KIND_SUPERSEDED, "final": pb.LABEL_KIND_FINAL}
_RESULT_IDS = ("toolCallId", "toolUseId", "tool_call_id", "tool_use_id", "callId", "call_id")
_MAX_BLOCKS = 256
_MAX_NAME_BYTES = 256
_MAX_TYPE_BYTES = 128
_MAX_PROVIDER_BYTES = 64


class _Unknown(Exception):
    """The line has no shape that the contract knows: it is kept as it is."""


@dataclass(slots=True)
class _Draft:
    """An entry in progress, and the positions of its texts in the line, in order."""

    body: pb.EntryBody = field(default_factory=pb.EntryBody)
    spans: list[Span] = field(default_factory=list)

    def text(self, node: Node | None) -> str:
        """Return the string's text, and record its position in the line."""
        if not isinstance(node, String):
            raise _Unknown
        self.spans.append((node.start, node.end) if _is_storable(node.value) else None)
        return _storable(node.value)


def entry_of(line: str, root: Object, source_id: str, kept_entry_id: str) -> pb.EntryBody:
    """Return the entry of a line, an opaque one if the contract has no shape for it.

    `kept_entry_id` is the id of the entry that a summary or a label refers to.
    """
    kind = _string(root, "type")
    draft = _Draft()
    try:
        _fill(draft, kind, root, line, kept_entry_id, is_ours=is_id(IdKind.ENTRY, source_id))
    except (_Unknown, MeshError):
        return opaque_of(line, root, source_id)
    draft.body.source.CopyFrom(with_gaps(line, source_id, draft.spans))
    return draft.body


def opaque_of(line: str, root: Object, source_id: str) -> pb.EntryBody:
    """Return the line as an opaque entry."""
    body = pb.EntryBody(source=with_gaps(line, source_id, [(root.start, root.end)]))
    body.opaque.type = _cut(_string(root, "type"), _MAX_TYPE_BYTES)
    body.opaque.entry_json = line[root.start : root.end]
    return body


def header_of(line: str, root: Object, source_id: str, header: pb.Header) -> pb.EntryBody:
    """Return the transcript's header, which keeps the file's header line."""
    return pb.EntryBody(header=header, source=with_gaps(line, source_id, ()))


def _fill(draft: _Draft, kind: str, root: Object, line: str, kept_entry_id: str, *, is_ours: bool) -> None:
    match kind:
        case "message":
            message = root.member("message")
            if not isinstance(message, Object):
                raise _Unknown
            _message(draft, message, line, _ROLES.get(_string(message, "role")))
        case "custom_message":
            _message(draft, root, line, content_pb.ROLE_CUSTOM)
        case "model_change":
            model = _model(root, "modelId")
            if not model:
                raise _Unknown
            draft.body.model_change.model = model
        case "thinking_level_change":
            level = _string(root, "thinkingLevel")
            if not level.strip() or len(level.encode()) > 64:
                raise _Unknown
            draft.body.model_change.thinking_level = level
        case "compaction":
            compaction = draft.body.compaction
            compaction.summary = draft.text(root.member("summary"))
            compaction.first_kept_entry_id = kept_entry_id
            compaction.token_count_before = max(0, _integer(root, "tokensBefore", line) or 0)
            compaction.token_count_after = max(0, _integer(root, "tokensAfter", line) or 0)
            if not compaction.summary:
                raise _Unknown
        case "branch_summary":
            draft.body.branch_summary.summary = draft.text(root.member("summary"))
            draft.body.branch_summary.from_entry_id = kept_entry_id
            if not draft.body.branch_summary.summary:
                raise _Unknown
        case "label":
            label = _LABELS.get(_string(root, "label"))
            if (
                label is None or not kept_entry_id or not is_ours
            ):  # Labels of other programs may mean anything.
                raise _Unknown
            draft.body.label.kind, draft.body.label.entry_id = label, kept_entry_id
        case "custom":
            custom = draft.body.custom
            custom.custom_type = _cut(_string(root, "customType"), _MAX_TYPE_BYTES)
            data = root.member("data")
            if not custom.custom_type:
                raise _Unknown
            if data is not None:
                custom.data_json = line[data.start : data.end]
            draft.spans.append((data.start, data.end) if data is not None else None)
        case _:
            raise _Unknown


def _message(draft: _Draft, node: Object, line: str, role: "content_pb.Role.ValueType | None") -> None:
    if role is None:
        raise _Unknown
    message = draft.body.message
    message.role = role
    if role == content_pb.ROLE_BASH_EXECUTION:
        output = node.member("output")
        if output is not None:
            message.content.add().text.text = draft.text(output)
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
                raise _Unknown
    if len(message.tool_call_id.encode()) > _MAX_NAME_BYTES:
        raise _Unknown
    check_message(message, "message")


def _content(draft: _Draft, node: Node | None, line: str) -> None:
    message = draft.body.message
    if isinstance(node, String):
        message.content.add().text.text = draft.text(node)
    elif isinstance(node, List):
        if len(node.items) > _MAX_BLOCKS:
            raise _Unknown
        for item in node.items:
            if isinstance(item, Object):
                _block(draft, item, line)
            elif isinstance(item, String):
                message.content.add().text.text = draft.text(item)


def _block(draft: _Draft, block: Object, line: str) -> None:
    """Add a content block. Blocks of other types stay in the line, and no model reads them."""
    content = draft.body.message.content
    kind = _string(block, "type")
    if kind == "text" and isinstance(block.member("text"), String):
        content.add().text.text = draft.text(block.member("text"))
    elif kind == "thinking" and isinstance(block.member("thinking"), String):
        thinking = content.add().thinking
        thinking.text = draft.text(block.member("thinking"))
        signature = block.member("thinkingSignature") or block.member("signature")
        if isinstance(signature, String):
            thinking.signature = draft.text(signature)
        else:
            draft.spans.append(None)
    elif kind == "image":
        _image(draft, block)
    elif kind in CALL_TYPES:
        call_id, name = _first_string(block, CALL_IDS), _string(block, "name")
        if (
            call_id.strip()
            and name.strip()
            and max(len(call_id.encode()), len(name.encode())) <= _MAX_NAME_BYTES
        ):
            text = line[block.start : block.end]
            call = content.add().tool_call
            call.tool_call_id, call.name, call.block_json = call_id, name.strip(), text
            draft.spans.append((block.start, block.end))


def _image(draft: _Draft, block: Object) -> None:
    source = block.member("source")
    holder = source if isinstance(source, Object) else block
    data = holder.member("data")
    mime_type = _string(holder, "mimeType") or _string(holder, "media_type")
    if not isinstance(data, String) or len(mime_type.encode()) > 127:
        return
    try:
        decoded = b64decode(data.value, validate=True)
    except (NotBase64, ValueError):
        return
    image = draft.body.message.content.add().image
    image.mime_type, image.data = mime_type, decoded
    draft.spans.append((data.start, data.end) if _is_canonical(data.value, decoded) else None)


def _is_canonical(text: str, decoded: bytes) -> bool:
    """Return whether the text, which is valid base64, is the encoding of the bytes: only its end
    can differ.
    """
    size = len(decoded)
    tail = decoded[size - (size % 3 or 3) :] if size else b""
    return len(text) == (size + 2) // 3 * 4 and text.endswith(b64encode(tail).decode())


def _string(node: Object, name: str) -> str:
    child = node.member(name)
    return _storable(child.value) if isinstance(child, String) else ""


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


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _storable(text: str) -> str:
    """Return the text without lone surrogates, which have no bytes; the line keeps them."""
    return text if _is_storable(text) else text.encode("utf-8", "replace").decode()


def _cut(text: str, max_bytes: int) -> str:
    return text.encode()[:max_bytes].decode("utf-8", "ignore")
