"""CreateTranscript. Creates the session's transcript with its header entry."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import MeshError, invalid, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.entries import EntryKind, Head, NewEntry, StoredEntry
from spawnmesh_transcript.domain.refusals import other_origin, tenant_purged, transcript_deleted
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.turns import Group, Turn, turns_of
from spawnmesh_transcript.operations.bodies.masking import masked_body
from spawnmesh_transcript.operations.bodies.message_entries import message_entry
from spawnmesh_transcript.operations.bodies.synthetic_results import synthetic_result
from spawnmesh_transcript.operations.bodies.well_formed import serialize
from spawnmesh_transcript.operations.context_selection import choose_fork
from spawnmesh_transcript.operations.rehydration import rehydrate_entries
from spawnmesh_transcript.operations.stub_creation import create_stubs_of_fork
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_key, render_head
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import payloads as payload_store
from spawnmesh_transcript.store import planner
from spawnmesh_transcript.store import tenants as tenant_store
from spawnmesh_transcript.store import transcripts as transcript_store


@dataclass(frozen=True, slots=True)
class _Fork:
    """The session to copy from, and how much."""

    source_session_id: str
    max_token_count: int
    up_to_seq: int


@dataclass(frozen=True, slots=True)
class _Copies:
    """Copies of another transcript's messages, and whether secrets are masked in them."""

    entries: Sequence[NewEntry]
    is_masked: bool


async def create_transcript(
    request: pb.CreateTranscriptRequest, caller: Caller, deps: Dependencies
) -> pb.CreateTranscriptResponse:
    """Create the transcript with its header and what is forked into it; if it exists, return its
    head.

    Raises NOT_FOUND without the session to fork from, ALREADY_EXISTS for a transcript of another
    origin, TRANSCRIPT_DELETED, UNKNOWN_TENANT while the tenant is being purged, and CONFLICT if
    something changed meanwhile and the caller should repeat the call.
    """
    key = parse_key(request.session_id, caller)
    fork, parent_session_id = _parse_fork(request), _parse_parent(request)
    incarnation = new_id(IdKind.INCARNATION)
    header = entry_pb.Header(session_id=key.session_id, incarnation=incarnation)
    if fork:
        header.forked_from_session_id = fork.source_session_id
    entry = NewEntry(kind=EntryKind.HEADER, body=serialize(entry_pb.EntryBody(header=header)))
    if fork is None:
        head = await transcript_store.begin_transcript(
            deps.database,
            key,
            incarnation=incarnation,
            parent_session_id=parent_session_id,
            service=caller.service,
            entries=[entry],
        )
        if head is not None:
            return pb.CreateTranscriptResponse(head=render_head(head))
    head = await _create(
        deps,
        key,
        fork,
        entry,
        incarnation=incarnation,
        parent_session_id=parent_session_id,
        service=caller.service,
    )
    return pb.CreateTranscriptResponse(head=render_head(head))


async def _create(
    deps: Dependencies,
    key: Key,
    fork: _Fork | None,
    header: NewEntry,
    *,
    incarnation: str,
    parent_session_id: str,
    service: str,
) -> Head:
    origin = fork.source_session_id if fork else ""
    copies = await _copy_messages(deps, key, fork) if fork else None
    async with deps.database.transaction(key.tenant_id) as connection:
        if not await tenant_store.enter_tenant(connection, key.tenant_id):
            raise tenant_purged()
        if not await transcript_store.insert_transcript(
            connection,
            key,
            incarnation=incarnation,
            forked_from_session_id=origin,
            parent_session_id=parent_session_id,
        ):
            if await transcript_store.is_deleted(connection, key):
                raise transcript_deleted(key.session_id)
            existing = await transcript_store.get_transcript(connection, key)
            if existing.forked_from_session_id != origin:
                raise other_origin(key.session_id, existing.forked_from_session_id)
            return existing.head
        if fork is None:
            return await entry_store.write_entries(connection, key, [header], service=service)
        policy = await tenant_store.read_policy(connection, key.tenant_id)
        if copies is None:  # The session had an import, which was aborted meanwhile.
            raise MeshError(Reason.CONFLICT, "the transcript was just removed; create it again")
        if policy.mask_secrets and not copies.is_masked:
            raise MeshError(
                Reason.CONFLICT, "the tenant's settings just changed; create the transcript again"
            )
        entries = [header, *copies.entries]
        head = await entry_store.write_entries(connection, key, entries, service=service)
        stubs = await create_stubs_of_fork(deps.blobs, entries, policy)
        if stubs:
            await payload_store.insert_stubs(connection, key, stubs, first_seq=1)
    if stubs:
        deps.uploader.start(key)
    return head


async def _copy_messages(deps: Dependencies, key: Key, fork: _Fork) -> _Copies | None:
    """Copy the source's newest messages, redacted as they are there, and masked by the policy that
    holds now.

    Missing results become entries that say so. Return None if the session has a transcript already,
    whatever became of the source. Raises INVALID_REQUEST for a call that cannot be masked.
    """
    source = Key(key.tenant_id, fork.source_session_id)
    async with deps.database.transaction(key.tenant_id) as connection:
        if not await tenant_store.enter_tenant(connection, key.tenant_id):
            raise tenant_purged()
        if await transcript_store.has_begun(connection, key):
            return None
        await planner.keep_index_order(connection)
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
    complete = await rehydrate_entries(deps.database, deps.blobs, source, [*stored.values()])
    stored = {entry.seq: entry for entry in complete}
    groups = [_copy_group(group, stored) for group in chosen.groups]
    if policy.mask_secrets:
        groups = await asyncio.to_thread(_masked, groups, max_token_count=fork.max_token_count)
    return _Copies([copy for group in groups for copy in group], policy.mask_secrets)


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


def _parse_fork(request: pb.CreateTranscriptRequest) -> _Fork | None:
    """Raise INVALID_REQUEST for a session that is its own source, NOT_FOUND for an id that cannot
    exist.
    """
    if not request.HasField("fork"):
        return None
    source = request.fork.source_session_id
    if source == request.session_id:
        raise invalid("fork.source_session_id", "is the session itself")
    if "\x00" in source:
        raise not_found("transcript", source)
    return _Fork(source, request.fork.max_token_count, request.fork.up_to_seq)


def _parse_parent(request: pb.CreateTranscriptRequest) -> str:
    """Raise INVALID_REQUEST for a session that is its own parent."""
    if "\x00" in request.parent_session_id or request.parent_session_id == request.session_id:
        raise invalid("parent_session_id", "is the session itself, or no id")
    return request.parent_session_id
