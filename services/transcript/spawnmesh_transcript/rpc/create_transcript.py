"""CreateTranscript. Creates the session's transcript with its header and first entries."""

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import invalid, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.operations.fork_copy import Fork
from spawnmesh_transcript.operations.transcript_creation import NewTranscript, create, create_with_entries
from spawnmesh_transcript.rpc.append_entries import append_entries, prepare_append
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_key, render_head


async def create_transcript(
    request: pb.CreateTranscriptRequest, caller: Caller, deps: Dependencies
) -> pb.CreateTranscriptResponse:
    """Create the transcript with its header, what is forked into it and the entries of the request;
    if it exists, append the entries unless they were appended before. Return the head.

    Raises NOT_FOUND without the session to fork from, ALREADY_EXISTS for a transcript of another
    origin, TRANSCRIPT_DELETED, UNKNOWN_TENANT while the tenant is being purged, CONFLICT if
    something changed meanwhile and the caller should repeat the call, and what AppendEntries
    raises.
    """
    key = parse_key(request.session_id, caller)
    fork, parent_session_id = _parse_fork(request), _parse_parent(request)
    if request.entries and not request.request_id:
        raise invalid("request_id", "is missing, and entries need one")
    new = NewTranscript(key, new_id(IdKind.INCARNATION), parent_session_id, fork, caller.service)
    first = pb.AppendEntriesRequest(
        session_id=request.session_id, request_id=request.request_id, entries=request.entries
    )
    if request.entries and not fork:
        append, stubs = await prepare_append(first, caller, deps)
        created = None if stubs else await create_with_entries(deps.database, new, append)
        if created is not None:
            deps.notifier.transcript_changed(key)
            return pb.CreateTranscriptResponse(head=render_head(created))
    head = await create(deps.database, deps.blobs, deps.workers, deps.uploader, new)
    if request.entries:
        return pb.CreateTranscriptResponse(head=(await append_entries(first, caller, deps)).head)
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
