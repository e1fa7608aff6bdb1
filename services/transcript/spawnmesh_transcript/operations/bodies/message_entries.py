"""Turn a message into an entry."""

from typing import NamedTuple

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb

from spawnmesh_transcript.domain.entries import EntryKind, NewEntry
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.domain.turns import Role
from spawnmesh_transcript.operations.bodies.synthetic_results import is_synthetic_result
from spawnmesh_transcript.operations.bodies.tokens import message_token_count
from spawnmesh_transcript.operations.bodies.well_formed import ROLES, serialize


def message_entry(
    message: content_pb.Message, source: pb.Source | None = None, *, vocabulary: Vocabulary = Vocabulary.O200K
) -> NewEntry:
    """Return the entry of a message that is ready to be stored, counted by a vocabulary.

    `source` is the line that it was imported from.
    """
    columns = message_columns(message)
    return NewEntry(
        kind=EntryKind.MESSAGE,
        body=serialize(pb.EntryBody(message=message, source=source)),
        token_count=message_token_count(message, vocabulary),
        token_vocabulary=vocabulary,
        role=columns.role,
        calls=columns.calls,
        answers=columns.answers,
        is_synthetic=columns.is_synthetic,
    )


class MessageColumns(NamedTuple):
    """The facts about a message that selection reads in columns beside the body."""

    role: Role
    calls: tuple[str, ...]
    answers: str
    is_synthetic: bool


def message_columns(message: content_pb.Message) -> MessageColumns:
    """Return the columns of a message. Raises KeyError for a role that is not stored."""
    calls = [block.tool_call.tool_call_id.strip() for block in message.content if block.HasField("tool_call")]
    role = ROLES[message.role]
    return MessageColumns(
        role,
        calls=tuple(dict.fromkeys(calls)) if role is Role.ASSISTANT else (),
        answers=message.tool_call_id.strip() if role is Role.TOOL_RESULT else "",
        is_synthetic=role is Role.TOOL_RESULT and is_synthetic_result(message),
    )
