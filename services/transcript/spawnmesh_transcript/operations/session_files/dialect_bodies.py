"""Convert what a dialect found in a line to entry bodies."""

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.json_text import Object

from spawnmesh_transcript.domain.dialects.reading import (
    CallBlock,
    ImageBlock,
    MessagePart,
    Part,
    Reading,
    SummaryPart,
    TextBlock,
    ThinkingBlock,
)
from spawnmesh_transcript.domain.turns import Role
from spawnmesh_transcript.operations.bodies.well_formed import check_message
from spawnmesh_transcript.operations.session_files.drafts import EntryDraft, UnknownShape, storable
from spawnmesh_transcript.operations.session_files.line_bodies import opaque_of

_MAX_BLOCKS = 256
_MAX_ID_BYTES = 256
_MAX_MODEL_BYTES = 256
_ROLES = {
    Role.USER: content_pb.ROLE_USER,
    Role.ASSISTANT: content_pb.ROLE_ASSISTANT,
    Role.TOOL_RESULT: content_pb.ROLE_TOOL_RESULT,
}


def bodies_of(
    line: str, root: Object, reading: Reading, first_kept_entry_id: str, *, is_exact: bool
) -> list[pb.EntryBody]:
    """Return the bodies of a line's entries: at least one, and the first one has the line.

    Parts that are no message of the contract stay in the line, and no model reads them.
    """
    bodies: list[pb.EntryBody] = []
    for part in reading.parts:
        draft = EntryDraft(line, is_exact=is_exact)
        try:
            _fill(draft, part, first_kept_entry_id)
        except (UnknownShape, MeshError):
            continue
        if bodies:
            draft.body.source.id, draft.body.source.has_no_line = reading.source_id, True
            bodies.append(draft.body)
        else:
            bodies.append(draft.finish(reading.source_id))
    return bodies or [opaque_of(line, root, reading.source_id, kind=reading.kind)]


def _fill(draft: EntryDraft, part: Part, first_kept_entry_id: str) -> None:
    match part:
        case MessagePart():
            _fill_message(draft, part)
        case SummaryPart(texts=[text]):
            draft.body.compaction.summary = draft.text(text)
            draft.body.compaction.first_kept_entry_id = first_kept_entry_id
        case SummaryPart():
            draft.body.compaction.summary = "\n\n".join(storable(text.value) for text in part.texts)
            draft.body.compaction.first_kept_entry_id = first_kept_entry_id
            draft.spans.append(None)


def _fill_message(draft: EntryDraft, said: MessagePart) -> None:
    message = draft.body.message
    message.role = _ROLES[said.role]
    if len(said.blocks) > _MAX_BLOCKS or len(said.call_id.encode()) > _MAX_ID_BYTES:
        raise UnknownShape
    for block in said.blocks:
        match block:
            case TextBlock(node):
                draft.add_text(node)
            case ThinkingBlock(node, signature):
                draft.add_thinking(node, signature)
            case CallBlock(node, call_id, name):
                draft.add_call(node, call_id, name)
            case ImageBlock(mime_type, node, prefix_length):
                draft.add_image(mime_type, node, prefix_length)
    message.tool_call_id, message.is_error = said.call_id, said.is_error
    if len(said.model.encode()) <= _MAX_MODEL_BYTES:
        message.model = said.model
    if not message.content and said.role is not Role.TOOL_RESULT:
        raise UnknownShape
    check_message(message, "message")
