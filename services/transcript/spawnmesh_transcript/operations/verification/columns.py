"""The columns of an entry that repeat what is in its body."""

from google.protobuf.message import DecodeError
from spawnmesh.transcript.v1 import entry_pb2 as pb

from spawnmesh_transcript.domain.entries import EntryKind, Head
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.verification import ChainEntry, EntryColumns
from spawnmesh_transcript.operations.bodies.message_entries import message_columns
from spawnmesh_transcript.operations.bodies.well_formed import KINDS, LABELS


def has_columns_of_body(key: Key, head: Head, entry: ChainEntry) -> bool:
    """Return whether the columns follow from the complete body, except for the label's target.

    The header must be that of this transcript.
    """
    try:
        body = pb.EntryBody.FromString(entry.body)
        columns = _columns_of(body)
    except (DecodeError, KeyError):
        return False
    if (entry.seq == 1) != (columns.kind == EntryKind.HEADER):
        return False
    if columns.kind == EntryKind.HEADER:
        header = body.header
        if (header.session_id, header.incarnation) != (key.session_id, head.incarnation):
            return False
    return entry.columns == columns and (entry.target_seq is None) == (not columns.label)


def labelled_entry_id(entry: ChainEntry) -> str:
    """Return the id of the entry that a label marks, empty for an entry that is no label."""
    return pb.EntryBody.FromString(entry.body).label.entry_id if entry.columns.label else ""


def _columns_of(body: pb.EntryBody) -> EntryColumns:
    """Raises KeyError for a kind, role or label that is not stored."""
    kind = KINDS[body.WhichOneof("kind") or ""]
    if kind is EntryKind.MESSAGE:
        return EntryColumns(kind, *message_columns(body.message))
    return EntryColumns(kind, label=LABELS[body.label.kind] if kind is EntryKind.LABEL else "")
