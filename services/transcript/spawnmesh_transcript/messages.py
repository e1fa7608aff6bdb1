"""A message into an entry that holds it."""

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb

from spawnmesh_transcript.bodies import ROLES, serialize
from spawnmesh_transcript.domain.entries import EntryKind, NewEntry
from spawnmesh_transcript.domain.families import Vocabulary
from spawnmesh_transcript.domain.turns import Role
from spawnmesh_transcript.synthetic import is_synthetic_result
from spawnmesh_transcript.tokens import message_token_count


def message_entry(
    message: content_pb.Message, source: pb.Source | None = None, *, vocabulary: Vocabulary = Vocabulary.O200K
) -> NewEntry:
    """A message that is already as it is to be stored, counted by a vocabulary, with the line that it was imported from."""
    calls = [block.tool_call.tool_call_id.strip() for block in message.content if block.HasField("tool_call")]
    role = ROLES[message.role]
    return NewEntry(
        kind=EntryKind.MESSAGE,
        body=serialize(pb.EntryBody(message=message, source=source)),
        token_count=message_token_count(message, vocabulary),
        token_vocabulary=vocabulary,
        role=role,
        calls=tuple(dict.fromkeys(calls)) if role is Role.ASSISTANT else (),
        answers=message.tool_call_id.strip() if role is Role.TOOL_RESULT else "",
        is_synthetic=role is Role.TOOL_RESULT and is_synthetic_result(message),
    )
