"""Requests into domain values, and what a caller may ask for."""

from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh.transcript.v1 import tenant_pb2 as tenant_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.context_pb2 import FreshTail
from spawnmesh_core.errors import invalid, not_found
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import Caller, CallerKind

from spawnmesh_transcript.bodies import ROLES
from spawnmesh_transcript.domain.entries import EntryKind, WriterClaim
from spawnmesh_transcript.domain.families import Vocabulary
from spawnmesh_transcript.domain.policy import LARGE_PAYLOAD_BYTES, TenantPolicy
from spawnmesh_transcript.domain.refusals import claim_of_another_run, client_with_claim, unowned_append_not_allowed
from spawnmesh_transcript.domain.tier import TailLimits
from spawnmesh_transcript.domain.window import Fence
from spawnmesh_transcript.domain.writers import UNOWNED_APPEND, Writer, unowned_of_client, unowned_of_service
from spawnmesh_transcript.operations import Fork
from spawnmesh_transcript.search_store import is_descendant
from spawnmesh_transcript.store import Filter, Key, Position

_BEHIND_ALL = 2**63 - 1


def parse_key(session_id: str, caller: Caller) -> Key:
    """The caller's transcript of that session. Raises NOT_FOUND for a run that asks for another session than its own."""
    if "\x00" in session_id or (caller.kind is CallerKind.RUN and caller.session_id != session_id):
        raise not_found("transcript", session_id)
    return Key(caller.tenant_id, session_id)


async def readable_key(database: Database, session_id: str, caller: Caller) -> Key:
    """The caller's transcript of that session, for reading: a run also reads what descends from its session. Raises NOT_FOUND."""
    if caller.kind is not CallerKind.RUN or caller.session_id == session_id:
        return parse_key(session_id, caller)
    if "\x00" not in session_id:
        key = Key(caller.tenant_id, session_id)
        async with database.transaction(caller.tenant_id) as connection:
            if await is_descendant(connection, key, caller.session_id):
                return key
    raise not_found("transcript", session_id)


def parse_fork(request: pb.CreateTranscriptRequest) -> Fork | None:
    """What to copy, if anything. Raises INVALID_REQUEST for a session that would be its own source, NOT_FOUND for an id that cannot exist."""
    if not request.HasField("fork"):
        return None
    source = request.fork.source_session_id
    if source == request.session_id:
        raise invalid("fork.source_session_id", "is the session itself")
    if "\x00" in source:
        raise not_found("transcript", source)
    return Fork(source, request.fork.max_token_count, request.fork.up_to_seq)


def parse_parent(request: pb.CreateTranscriptRequest) -> str:
    """The session that spawned this one. Raises INVALID_REQUEST for a session that would be its own parent."""
    if "\x00" in request.parent_session_id or request.parent_session_id == request.session_id:
        raise invalid("parent_session_id", "is the session itself, or no id")
    return request.parent_session_id


def parse_policy(request: tenant_pb.PrepareTenantRequest) -> TenantPolicy:
    """What is to hold for a tenant."""
    settings = request.settings
    return TenantPolicy(
        request.settings_version,
        settings.mask_secrets,
        settings.stub_large_tool_payloads,
        settings.large_payload_bytes or LARGE_PAYLOAD_BYTES,
        compact_at_percent=settings.compact_at_percent,
        token_vocabulary=Vocabulary(settings.token_vocabulary or Vocabulary.O200K),
    )


def parse_claim(claim: pb.WriterClaim, caller: Caller) -> WriterClaim:
    """The claim. Raises CALLER_NOT_ALLOWED for a run that comes with a claim not its own, and for a client."""
    if caller.kind is CallerKind.CLIENT:
        raise client_with_claim()
    if caller.kind is CallerKind.RUN and (claim.run_id, claim.epoch) != (caller.run_id, caller.epoch):
        raise claim_of_another_run()
    if "\x00" in claim.run_id:
        raise invalid("claim.run_id", "has a NUL character")
    return WriterClaim(claim.run_id, claim.epoch)


def parse_writer(request: pb.AppendEntriesRequest, caller: Caller) -> Writer:
    """Who appends. Raises UNOWNED_APPEND_NOT_ALLOWED for a run without a claim and for a client without the permission."""
    claim = parse_claim(request.claim, caller) if request.HasField("claim") else None
    match caller.kind:
        case CallerKind.RUN if claim is None:
            raise unowned_append_not_allowed("a run appends with its claim")
        case CallerKind.CLIENT:
            unowned = unowned_of_client(caller.permissions)
            if not unowned:
                raise unowned_append_not_allowed(f"a client needs a token with the permission {UNOWNED_APPEND}")
            return Writer(client=caller.subject, unowned=unowned)
        case _:
            return Writer(claim=claim, service=caller.service, unowned=unowned_of_service(caller.service))


def parse_fence(fence: pb.Fence) -> Fence:
    """The fence as it was given out."""
    return Fence(fence.incarnation, fence.seq, bytes.fromhex(fence.chain_hash))


def parse_position(request: pb.ListEntriesRequest) -> Position:
    """Where a page begins and which way it goes."""
    if request.HasField("before_seq"):
        return Position(request.before_seq or _BEHIND_ALL, is_downwards=True)
    return Position(request.after_seq)


def parse_filter(given: entry_pb.EntryFilter) -> Filter:
    """Which entries are asked for."""
    names = (entry_pb.EntryKind.Name(kind) for kind in given.kinds)
    return Filter(
        kinds=frozenset(EntryKind(name.removeprefix("ENTRY_KIND_")) for name in names),
        roles=frozenset(ROLES[role] for role in given.roles),
    )


def parse_tail(tail: FreshTail) -> TailLimits:
    """What is fresh."""
    usual = TailLimits()
    return TailLimits(tail.message_count or usual.message_count, tail.token_count or usual.token_count)


def parse_idempotency_key(request: pb.AppendEntriesRequest) -> str:
    """The key of an append."""
    if "\x00" in request.idempotency_key:
        raise invalid("idempotency_key", "has a NUL character")
    return request.idempotency_key
