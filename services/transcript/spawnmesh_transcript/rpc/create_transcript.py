"""CreateTranscript. Creates the session's transcript with its header entry."""

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import invalid, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.operations.fork_copy import Fork
from spawnmesh_transcript.operations.transcript_creation import NewTranscript, create
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_key, render_head


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
    new = NewTranscript(key, new_id(IdKind.INCARNATION), parent_session_id, fork, caller.service)
    head = await create(deps.database, deps.blobs, deps.workers, deps.uploader, new)
    return pb.CreateTranscriptResponse(head=render_head(head))


def _parse_fork(request: pb.CreateTranscriptRequest) -> Fork | None:
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
    return Fork(source, request.fork.max_token_count, request.fork.up_to_seq)


def _parse_parent(request: pb.CreateTranscriptRequest) -> str:
    """Raise INVALID_REQUEST for a session that is its own parent."""
    if "\x00" in request.parent_session_id or request.parent_session_id == request.session_id:
        raise invalid("parent_session_id", "is the session itself, or no id")
    return request.parent_session_id
