"""Requests into domain values, and what a caller may ask for."""

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import invalid, not_found
from spawnmesh_runtime.caller import Caller, CallerKind

from spawnmesh_transcript.domain.entries import WriterClaim
from spawnmesh_transcript.domain.refusals import claim_of_another_run, unowned_append_not_allowed
from spawnmesh_transcript.operations import Fork
from spawnmesh_transcript.store import Key


def parse_key(session_id: str, caller: Caller) -> Key:
    """The caller's transcript of that session. Raises NOT_FOUND for a run that asks for another session than its own."""
    if "\x00" in session_id or (caller.kind is CallerKind.RUN and caller.session_id != session_id):
        raise not_found("transcript", session_id)
    return Key(caller.tenant_id, session_id)


def parse_fork(request: pb.CreateTranscriptRequest) -> Fork | None:
    """What to copy, if anything. Raises INVALID_REQUEST for a session that would be its own source, NOT_FOUND for an id that cannot exist."""
    if not request.HasField("fork"):
        return None
    source = request.fork.source_session_id
    if source == request.session_id:
        raise invalid("fork.source_session_id", "is the session itself")
    if "\x00" in source:
        raise not_found("transcript", source)
    return Fork(source, request.fork.max_token_count)


def parse_claim(claim: pb.WriterClaim, caller: Caller) -> WriterClaim:
    """The claim. Raises CALLER_NOT_ALLOWED for a run that comes with a claim not its own."""
    if caller.kind is CallerKind.RUN and (claim.run_id, claim.epoch) != (caller.run_id, caller.epoch):
        raise claim_of_another_run()
    if "\x00" in claim.run_id:
        raise invalid("claim.run_id", "has a NUL character")
    return WriterClaim(claim.run_id, claim.epoch)


def parse_append_claim(request: pb.AppendEntriesRequest, caller: Caller) -> WriterClaim | None:
    """The claim of an append; None for an unowned one. Raises UNOWNED_APPEND_NOT_ALLOWED for a run without a claim."""
    if request.HasField("claim"):
        return parse_claim(request.claim, caller)
    if caller.kind is CallerKind.RUN:
        raise unowned_append_not_allowed("a run appends with its claim")
    return None


def parse_idempotency_key(request: pb.AppendEntriesRequest) -> str:
    """The key of an append."""
    if "\x00" in request.idempotency_key:
        raise invalid("idempotency_key", "has a NUL character")
    return request.idempotency_key
