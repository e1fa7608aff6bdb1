"""Prepare appended entries for the store: redact, trim, mask, count, serialize. CPU work only."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import invalid
from spawnmesh_core.json_text import MAX_NODES, NotJson, TooManyNodes
from spawnmesh_runtime.cpu_workers import CpuWorkers

from spawnmesh_transcript.domain.entries import EntryKind, NewEntry
from spawnmesh_transcript.domain.line_parts import OWNED_TYPES
from spawnmesh_transcript.domain.policy import TranscriptPolicy
from spawnmesh_transcript.domain.redact import redact_block, redact_document
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.operations.bodies.masking import masked_body
from spawnmesh_transcript.operations.bodies.message_entries import message_entry
from spawnmesh_transcript.operations.bodies.tokens import count_tokens
from spawnmesh_transcript.operations.bodies.well_formed import LABELS, check_message, check_text, serialize
from spawnmesh_transcript.operations.session_files.round_trip import require_round_trip


@dataclass(frozen=True, slots=True)
class Prepared:
    """Entries ready to be stored, and the hash of the entries as they arrived, before the
    redaction.
    """

    entries: tuple[NewEntry, ...]
    content_hash: bytes


async def prepare_entries(
    workers: CpuWorkers, tenant_id: str, bodies: Sequence[pb.EntryBody], policy: TranscriptPolicy
) -> Prepared:
    """Prepare the entries of one append by the tenant's policy, in a worker process if they are
    large.

    Raises INVALID_REQUEST for what cannot be stored, with the path of the field,
    ATTACHMENT_CONTENT_IS_MARKER, and what `CpuWorkers.run` raises.
    """
    size_bytes = sum(body.ByteSize() for body in bodies)
    return await workers.run(tenant_id, size_bytes, _prepare, [*bodies], policy)


def _prepare(bodies: Sequence[pb.EntryBody], policy: TranscriptPolicy) -> Prepared:
    content = hashlib.sha256()
    entries: list[NewEntry] = []
    for index, body in enumerate(bodies):
        given = serialize(body)
        content.update(len(given).to_bytes(8))
        content.update(given)
        path = f"entries[{index}]"
        body = _redacted_body(body, path)
        # After the redaction: its markers have the hash of the unmasked content.
        if policy.mask_secrets:
            body = masked_body(body, path)
        entries.append(_entry(body, path, policy.token_vocabulary))
        require_round_trip(body, path, mask_secrets=policy.mask_secrets)
    return Prepared(tuple(entries), content.digest())


def _entry(body: pb.EntryBody, path: str, vocabulary: Vocabulary) -> NewEntry:
    if body.HasField("source"):
        raise invalid(f"{path}.source", "is written by imports alone")
    match body.WhichOneof("kind"):
        case "message":
            return message_entry(body.message, vocabulary=vocabulary)
        case "system_note":
            token_count = count_tokens(body.system_note.text, vocabulary)
            return NewEntry(
                EntryKind.NOTE, serialize(body), token_count=token_count, token_vocabulary=vocabulary
            )
        case "label":
            check_text(body.label.entry_id, f"{path}.label.entry_id")
            return NewEntry(
                kind=EntryKind.LABEL,
                body=serialize(body),
                label=LABELS[body.label.kind],
                target_entry_id=body.label.entry_id,
            )
        case "header":
            raise invalid(f"{path}.header", "headers are written by the service alone")
        case None:
            raise invalid(path, "has no kind; give a message, a system note, a label or another one")
        case _:
            return _record(body, path)


def _record(body: pb.EntryBody, path: str) -> NewEntry:
    """Return an entry of a kind that no model reads."""
    match body.WhichOneof("kind"):
        case "model_change":
            if not (body.model_change.model.strip() or body.model_change.thinking_level.strip()):
                raise invalid(f"{path}.model_change", "names neither a model nor a level of thinking")
            return NewEntry(kind=EntryKind.MODEL_CHANGE, body=serialize(body))
        case "compaction":
            if body.compaction.HasField("sources"):
                raise invalid(f"{path}.compaction.sources", "is written by CompactionService alone")
            target = body.compaction.first_kept_entry_id
            check_text(target, f"{path}.compaction.first_kept_entry_id")
            return NewEntry(kind=EntryKind.COMPACTION, body=serialize(body), target_entry_id=target)
        case "branch_summary":
            target = body.branch_summary.from_entry_id
            check_text(target, f"{path}.branch_summary.from_entry_id")
            return NewEntry(kind=EntryKind.BRANCH_SUMMARY, body=serialize(body), target_entry_id=target)
        case "custom":
            return NewEntry(kind=EntryKind.CUSTOM, body=serialize(body))
        case "opaque":
            if body.opaque.type in OWNED_TYPES:
                raise invalid(
                    f"{path}.opaque.type",
                    f"{body.opaque.type} has a kind of its own in session files; give another type",
                )
            return NewEntry(kind=EntryKind.OPAQUE, body=serialize(body))
        case _:
            return NewEntry(kind=EntryKind.MIRROR, body=serialize(body))


def _redacted_body(body: pb.EntryBody, path: str) -> pb.EntryBody:
    """Return a copy with names trimmed and attachment contents removed."""
    stored = pb.EntryBody()
    stored.CopyFrom(body)
    match stored.WhichOneof("kind"):
        case "message":
            _redact_message(stored.message, f"{path}.message")
        case "mirror":
            _redact_message(stored.mirror.message, f"{path}.mirror.message")
        case "custom" if stored.custom.data_json:
            at = f"{path}.custom.data_json"
            stored.custom.data_json = _redacted(stored.custom.data_json, at, is_object=False)
        case "opaque":
            at = f"{path}.opaque.entry_json"
            stored.opaque.entry_json = _redacted(stored.opaque.entry_json, at, is_object=True)
    return stored


def _redacted(text: str, path: str, *, is_object: bool) -> str:
    try:
        return redact_document(text, is_object=is_object)
    except TooManyNodes as error:
        raise invalid(path, f"has more than {MAX_NODES} JSON values") from error
    except NotJson as error:
        raise invalid(
            path, f"is not one JSON {'object' if is_object else 'value'} of reasonable depth"
        ) from error


def _redact_message(message: content_pb.Message, path: str) -> None:
    message.tool_name = message.tool_name.strip()
    check_message(message, path)
    for index, block in enumerate(message.content):
        if block.HasField("tool_call"):
            _redact_call(block.tool_call, f"{path}.content[{index}].tool_call")


def _redact_call(call: content_pb.ToolCall, path: str) -> None:
    call.name = call.name.strip()
    try:
        call.block_json = redact_block(call.name, call.block_json)
    except TooManyNodes as error:
        raise invalid(f"{path}.block_json", f"has more than {MAX_NODES} JSON values") from error
    except NotJson as error:
        raise invalid(f"{path}.block_json", "is not one JSON object of reasonable depth") from error
