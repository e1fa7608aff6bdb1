"""Check that an import accepts what an export writes for an entry, before the entry is appended."""

from datetime import UTC, datetime

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import invalid
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_core.json_text import MAX_NODES

from spawnmesh_transcript.operations.session_files.line_reader import (
    MAX_BODY_BYTES,
    MAX_LINE_BYTES,
    MAX_VALUES,
    Malformed,
    body_of,
    read_line,
)
from spawnmesh_transcript.operations.session_files.line_writer import line_bytes, line_of

_SURE_BYTES = 2 * MAX_NODES
"""So many bytes have fewer values than a line may have, also twice."""

_MOST_GROWTH = 12
"""Growth of a control character in a call that is written twice. An image grows by a third."""

_IDS_BYTES = 16 * 1024  # Ids of a file, each character written as an escape.
_ENTRY_ID = derived_id(IdKind.ENTRY, "any")
_TIME = datetime(2026, 1, 1, microsecond=1, tzinfo=UTC)


def require_round_trip(body: pb.EntryBody, path: str, *, mask_secrets: bool) -> None:
    """Raise INVALID_REQUEST, with the path, for an entry that is too large, or whose line an
    import would refuse.

    The import is one under the same settings: if these mask secrets and those of the append did
    not, more is searched.
    """
    size = body.ByteSize()
    if size > MAX_BODY_BYTES:
        raise invalid(path, f"has {size} bytes, which is more than {MAX_BODY_BYTES}")
    image_bytes = _image_bytes(body)
    rest = size - image_bytes
    if rest <= _SURE_BYTES and image_bytes * 4 // 3 + rest * _MOST_GROWTH <= MAX_LINE_BYTES - _IDS_BYTES:
        return
    line = line_bytes(line_of(_ENTRY_ID, _TIME, body, _ENTRY_ID, {}))
    if len(line) <= MAX_BODY_BYTES and not _may_have_too_many_values(line):
        return
    try:
        if len(line) > MAX_LINE_BYTES - _IDS_BYTES:
            raise Malformed(f"is longer than {MAX_LINE_BYTES - _IDS_BYTES} bytes")
        body_of(read_line(line.decode(), mask_secrets=mask_secrets), lambda _: _ENTRY_ID)
    except Malformed as error:
        raise invalid(path, f"could not be imported again: its line in a session file {error}") from None


def _may_have_too_many_values(line: bytes) -> bool:
    """Return False only for a line that surely has few values, including those in its strings.

    An escape may hide a character that matters.
    """
    return b"\\u" in line or sum(map(line.count, (b",", b"[", b"{"))) >= MAX_VALUES


def _image_bytes(body: pb.EntryBody) -> int:
    """Return the bytes of a message's images; those of a mirror stay base64."""
    return sum(len(block.image.data) for block in body.message.content if block.HasField("image"))
