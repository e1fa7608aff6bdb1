"""An entry in progress that is made of a line of a session file."""

from base64 import b64decode, b64encode
from binascii import Error as NotBase64

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.json_text import Node, Object, String, quoted

from spawnmesh_transcript.operations.session_files.source_lines import with_gaps

Span = tuple[int, int] | None

_MAX_NAME_BYTES = 256
_MAX_MIME_TYPE_BYTES = 127


class UnknownShape(Exception):
    """The line has no shape that the contract knows: it is kept as it is."""


class EntryDraft:
    """The body in progress, and the positions of its texts in the line, in order.

    If `is_exact` is set, only texts that are spelled as an export spells them are cut out of the
    line, so that it is restored byte for byte.
    """

    def __init__(self, line: str, *, is_exact: bool) -> None:
        self.body = pb.EntryBody()
        self.spans: list[Span] = []
        self._unquoted: list[int] = []
        self._line = line
        self._is_exact = is_exact

    def text(self, node: Node | None) -> str:
        """Return the string's text, and record its position in the line."""
        if not isinstance(node, String):
            raise UnknownShape
        can_cut = is_storable(node.value)
        if can_cut and self._is_exact:
            can_cut = self._line[node.start : node.end] == quoted(node.value)
        self.spans.append((node.start, node.end) if can_cut else None)
        return storable(node.value)

    def add_text(self, node: Node) -> None:
        self.body.message.content.add().text.text = self.text(node)

    def add_thinking(self, node: Node | None, signature: Node | None) -> None:
        thinking = self.body.message.content.add().thinking
        thinking.text = self.text(node)
        if isinstance(signature, String):
            thinking.signature = self.text(signature)
        else:
            self.spans.append(None)

    def add_call(self, block: Object, call_id: str, name: str) -> None:
        """Add a call. One without an id or a name stays in the line, and no model reads it."""
        if not (call_id.strip() and name.strip()):
            return
        if max(len(call_id.encode()), len(name.encode())) <= _MAX_NAME_BYTES:
            call = self.body.message.content.add().tool_call
            call.tool_call_id, call.name = call_id, name.strip()
            call.block_json = self._line[block.start : block.end]
            self.spans.append((block.start, block.end))

    def add_image(self, mime_type: str, node: Node | None, prefix_length: int = 0) -> None:
        """Add an image in base64. What cannot be decoded stays in the line, and no model reads it.

        The base64 begins after `prefix_length` characters of the string.
        """
        if not isinstance(node, String) or len(mime_type.encode()) > _MAX_MIME_TYPE_BYTES:
            return
        text = node.value[prefix_length:]
        try:
            decoded = b64decode(text, validate=True)
        except (NotBase64, ValueError):
            return
        image = self.body.message.content.add().image
        image.mime_type, image.data = mime_type, decoded
        is_plain = node.end - node.start == len(node.value) + 2  # No escapes.
        if not _is_canonical(text, decoded) or not (is_plain or (not prefix_length and not self._is_exact)):
            self.spans.append(None)
        elif prefix_length:
            self._unquoted.append(len(self.spans))
            self.spans.append((node.start + 1 + prefix_length, node.end - 1))
        else:
            self.spans.append((node.start, node.end))

    def finish(self, source_id: str) -> pb.EntryBody:
        """Return the body with its line."""
        source = with_gaps(self._line, source_id, self.spans)
        source.is_exact = self._is_exact
        source.unquoted.extend(self._unquoted)
        self.body.source.CopyFrom(source)
        return self.body


def is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def storable(text: str) -> str:
    """Return the text without lone surrogates, which have no bytes; the line keeps them."""
    return text if is_storable(text) else text.encode("utf-8", "replace").decode()


def _is_canonical(text: str, decoded: bytes) -> bool:
    """Return whether the text, which is valid base64, is the encoding of the bytes: only its end
    can differ.
    """
    size = len(decoded)
    tail = decoded[size - (size % 3 or 3) :] if size else b""
    return len(text) == (size + 2) // 3 * 4 and text.endswith(b64encode(tail).decode())
