"""Copy the messages of another transcript for a fork."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.cpu_workers import CpuWorkers

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.entries import EntryKind, NewEntry, StoredEntry
from spawnmesh_transcript.domain.refusals import tenant_purged
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.turns import Group, Turn, turns_of
from spawnmesh_transcript.operations.bodies.masking import masked_body
from spawnmesh_transcript.operations.bodies.message_entries import message_entry
from spawnmesh_transcript.operations.bodies.synthetic_results import synthetic_result
from spawnmesh_transcript.operations.bodies.well_formed import serialize
from spawnmesh_transcript.operations.context_selection import choose_fork
from spawnmesh_transcript.operations.rehydration import rehydrate_entries
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import tenants as tenant_store
from spawnmesh_transcript.store import transcripts as transcript_store


@dataclass(frozen=True, slots=True)
class Fork:
    """The session to copy from, and how much."""

    source_session_id: str
    max_token_count: int
    up_to_seq: int


@dataclass(frozen=True, slots=True)
class ForkCopies:
    """Copies of another transcript's messages, and whether secrets are masked in them."""

    entries: Sequence[NewEntry]
    is_masked: bool


async def copy_messages(
    database: Database, blobs: BlobStore, workers: CpuWorkers, key: Key, fork: Fork
) -> ForkCopies | None:
    """Copy the source's newest messages, redacted as they are there, and masked by the policy that
    holds now.

    Missing results become entries that say so. Return None if the session has a transcript already,
    whatever became of the source. Raises INVALID_REQUEST for a call that cannot be masked, and
    what `CpuWorkers.run` raises.
    """
    source = Key(key.tenant_id, fork.source_session_id)
    async with database.transaction(key.tenant_id) as connection:
        if not await tenant_store.enter_tenant(connection, key.tenant_id):
            raise tenant_purged()
        if await transcript_store.has_begun(connection, key):
            return None
        transcript = await transcript_store.get_transcript(connection, source)
        policy = await tenant_store.read_policy(connection, key.tenant_id)
        chosen = await choose_fork(
            connection,
            source,
            transcript,
            max_token_count=fork.max_token_count,
            up_to_seq=fork.up_to_seq or transcript.head.seq,
        )
        # The source is read without a lock: NOT_FOUND if it was deleted between choosing and
        # reading.
        stored = await entry_store.get_entries(
            connection, source, [turn.seq for turn in turns_of(chosen.groups)]
        )
    complete = await rehydrate_entries(database, blobs, source, [*stored.values()])
    stored = {entry.seq: entry for entry in complete}
    groups = [_copy_group(group, stored) for group in chosen.groups]
    if policy.mask_secrets:
        size_bytes = sum(len(copy.body) for group in groups for copy in group)
        groups = await workers.run(
            key.tenant_id, size_bytes, _masked, groups, max_token_count=fork.max_token_count
        )
    return ForkCopies([copy for group in groups for copy in group], policy.mask_secrets)


def _copy_group(group: Group, stored: Mapping[int, StoredEntry]) -> list[NewEntry]:
    head = entry_pb.EntryBody.FromString(stored[group.head.seq].body).message
    return [
        _copy(member, stored[member.seq].body)
        if isinstance(member, Turn)
        else message_entry(synthetic_result(head, member.call_id))
        for member in group.members
    ]


def _copy(turn: Turn, stored: bytes) -> NewEntry:
    """Copy the message without its source: the imported line names entries of another file."""
    body = entry_pb.EntryBody.FromString(stored)
    body.ClearField("source")
    return NewEntry(
        kind=EntryKind.MESSAGE,
        body=serialize(body),
        token_count=turn.token_count,
        token_vocabulary=Vocabulary(turn.counted_by),
        role=turn.role,
        calls=turn.calls,
        answers=turn.answers,
        is_synthetic=turn.is_synthetic,
    )


def _masked(groups: Sequence[Sequence[NewEntry]], *, max_token_count: int) -> list[list[NewEntry]]:
    """Mask secrets in groups of messages, and drop the oldest groups that no longer fit.

    A marker may have more tokens than the secret. Raises INVALID_REQUEST for a call that cannot be
    masked.
    """
    masked: list[list[NewEntry]] = []
    left = max_token_count
    for group in reversed(groups):
        copies = [_masked_copy(entry) for entry in group]
        left -= sum(copy.token_count for copy in copies)
        if left < 0:
            break
        masked.append(copies)
    return masked[::-1]


def _masked_copy(entry: NewEntry) -> NewEntry:
    body = entry_pb.EntryBody.FromString(entry.body)
    masked = masked_body(body, "fork.source_session_id")
    return entry if masked == body else message_entry(masked.message, vocabulary=entry.token_vocabulary)
