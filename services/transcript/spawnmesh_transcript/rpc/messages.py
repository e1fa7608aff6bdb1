"""Parse and render the messages that several RPCs share."""

from datetime import UTC, datetime

from google.protobuf.message import DecodeError
from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import context_pb2 as context_pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import invalid, not_found
from spawnmesh_runtime.caller import Caller, CallerKind

from spawnmesh_transcript.domain.entries import EntryFilter, EntryKind, Head, StoredEntry, WriterClaim
from spawnmesh_transcript.domain.prompt_window import Fence
from spawnmesh_transcript.domain.refusals import claim_of_another_run, client_with_claim, stored_hash_differs
from spawnmesh_transcript.domain.stale_results import TailLimits, tail_limits
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.turns import Role

_EPOCH = datetime.fromtimestamp(0, UTC)


def parse_key(session_id: str, caller: Caller) -> Key:
    """Return the key of the session's transcript.

    Raises NOT_FOUND for a run that names another session.
    """
    if "\x00" in session_id or (caller.kind is CallerKind.RUN and caller.session_id != session_id):
        raise not_found("transcript", session_id)
    return Key(caller.tenant_id, session_id)


def parse_claim(claim: pb.WriterClaim, caller: Caller) -> WriterClaim:
    """Return the claim.

    Raises CALLER_NOT_ALLOWED for a client, and for a run with the claim of another.
    """
    if caller.kind is CallerKind.CLIENT:
        raise client_with_claim()
    if caller.kind is CallerKind.RUN and (claim.run_id, claim.epoch) != (caller.run_id, caller.epoch):
        raise claim_of_another_run()
    if "\x00" in claim.run_id:
        raise invalid("claim.run_id", "has a NUL character")
    return WriterClaim(claim.run_id, claim.epoch)


def parse_filter(given: entry_pb.EntryFilter) -> EntryFilter:
    """Return the filter in the domain's kinds and roles."""
    kinds = (entry_pb.EntryKind.Name(kind) for kind in given.kinds)
    roles = (message_pb2.Role.Name(role) for role in given.roles)
    return EntryFilter(
        kinds=frozenset(EntryKind(name.removeprefix("ENTRY_KIND_")) for name in kinds),
        roles=frozenset(Role(name.removeprefix("ROLE_")) for name in roles),
    )


def parse_tail(tail: context_pb.FreshTail) -> TailLimits:
    """Return the limits of the fresh tail, with the defaults for those that are not given."""
    return tail_limits(tail.message_count, tail.token_count)


def render_head(head: Head) -> pb.Head:
    """Render the head of a transcript."""
    return pb.Head(
        incarnation=head.incarnation,
        seq=head.seq,
        chain_hash=head.chain_hash.hex(),
        writer_run_id=head.writer_run_id,
        writer_epoch=head.writer_epoch,
    )


def parse_fence(fence: pb.Fence) -> Fence:
    """Return a fence that the caller hands in again."""
    return Fence(fence.incarnation, fence.seq, bytes.fromhex(fence.chain_hash))


def render_fence(fence: Fence) -> pb.Fence:
    """Render a fence, which the caller hands in again."""
    return pb.Fence(incarnation=fence.incarnation, seq=fence.seq, chain_hash=fence.chain_hash.hex())


def render_entry(stored: StoredEntry, entry: entry_pb.Entry) -> None:
    """Fill in a stored entry. Its body is parsed from the very bytes that were hashed.

    A context has thousands of entries: therefore the message is filled in place, and its time is
    computed without the protobuf library's calendar. Raises STORED_HASH_DIFFERS for a body that
    cannot be parsed.
    """
    entry.entry_id = stored.entry_id
    entry.parent_entry_id = stored.parent_entry_id
    entry.seq = stored.seq
    entry.token_count = stored.token_count
    entry.chain_hash = stored.chain_hash.hex()
    writer = entry.writer
    writer.run_id = stored.writer_run_id
    writer.epoch = stored.writer_epoch
    writer.service = stored.writer_service
    writer.client = stored.writer_client
    age = stored.create_time - _EPOCH
    create_time = entry.create_time
    create_time.seconds = age.days * 86_400 + age.seconds
    create_time.nanos = age.microseconds * 1_000
    try:
        entry.body.ParseFromString(stored.body)
    except DecodeError:
        raise stored_hash_differs(
            f"the body of entry {stored.seq} is damaged; VerifyTranscript checks the transcript"
        ) from None
