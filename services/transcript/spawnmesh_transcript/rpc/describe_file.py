"""DescribeFile. Describes a file and, with a range, returns its content."""

from spawnmesh.policy.v1 import policy_pb2
from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh.transcript.v1 import file_service_pb2 as pb
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.condensation import CondensedFile, parse_file_id
from spawnmesh_transcript.domain.file_parts import Bytes, Content, Lines
from spawnmesh_transcript.domain.large_results import blob_id_of, file_id_of
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.callers import readable_key
from spawnmesh_transcript.operations.file_reading import find_condensed, part_of, read_part
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.store import payloads as payload_store
from spawnmesh_transcript.store.payloads import CondensedEntry, StoredPayload


async def describe_file(
    request: pb.DescribeFileRequest, caller: Caller, deps: Dependencies
) -> pb.DescribeFileResponse:
    """Return the file that a reference names, and the requested part of its content.

    Raises NOT_FOUND also if the caller may not read the file's transcript, INVALID_REQUEST for
    lines that the file does not have, DEPENDENCY_UNAVAILABLE, and STORED_HASH_DIFFERS.
    """
    part = _parse_part(request)
    content: Content | None = None
    if file := parse_file_id(request.file_id):
        entry, key = await _find_condensed(file, caller, deps)
        payload, data = await find_condensed(deps.database, deps.blobs, key, entry, file)
        content = part_of(payload, data, part) if part else None
    else:
        payload, key = await _find(request.file_id, caller, deps)
        content = await read_part(deps.database, deps.blobs, key, payload, part) if part else None
    part_name = (request.WhichOneof("range") or "start") if request.expand else "none"
    deps.stub_metrics.drilled_down(part=part_name, caller=caller.kind)
    activity = activity_pb.DrilledDown(
        file_id=request.file_id,
        part=activity_pb.FilePart.Value(f"FILE_PART_{part_name.upper()}"),
        caller=policy_pb2.Caller.Value(f"CALLER_{caller.kind.upper()}"),
        size_bytes=len(content.data) if content else 0,
    )
    deps.activities.record_later(key, activity_pb.Activity(drilled_down=activity))
    return _render(payload, content)


def _parse_part(request: pb.DescribeFileRequest) -> Bytes | Lines | None:
    if not request.expand:
        return None
    if request.HasField("lines"):
        return Lines(request.lines.first_line, request.lines.line_count)
    return Bytes(request.bytes.offset, request.bytes.length)


async def _find(file_id: str, caller: Caller, deps: Dependencies) -> tuple[StoredPayload, Key]:
    async with deps.database.transaction(caller.tenant_id) as connection:
        payload = await payload_store.read_payload(connection, caller.tenant_id, blob_id_of(file_id))
    if payload is None:
        raise not_found("file", file_id)
    return payload, await _readable_key(payload.session_id, file_id, caller, deps)


async def _find_condensed(
    file: CondensedFile, caller: Caller, deps: Dependencies
) -> tuple[CondensedEntry, Key]:
    async with deps.database.transaction(caller.tenant_id) as connection:
        entry = await payload_store.read_condensed_entry(connection, caller.tenant_id, file.message_id)
    if entry is None:
        raise not_found("file", file.file_id)
    return entry, await _readable_key(entry.session_id, file.file_id, caller, deps)


async def _readable_key(session_id: str, file_id: str, caller: Caller, deps: Dependencies) -> Key:
    """Return the key of the file's transcript.

    Raises NOT_FOUND for the file if the caller may not read it.
    """
    try:
        return await readable_key(deps.database, session_id, caller)
    except MeshError as error:
        if error.reason is not Reason.NOT_FOUND:
            raise
        raise not_found("file", file_id) from None


def _render(payload: StoredPayload, content: Content | None) -> pb.DescribeFileResponse:
    response = pb.DescribeFileResponse(
        file_id=file_id_of(payload.blob_id),
        session_id=payload.session_id,
        entry_id=payload.entry_id,
        seq=payload.seq,
        block_index=payload.block_index,
        tool_name=payload.tool_name,
        about=payload.about,
        mime_type=payload.mime_type,
        size_bytes=payload.size_bytes,
        line_count=payload.line_count,
        sha256=payload.sha256,
        create_time=timestamp_of(payload.create_time),
    )
    if content:
        response.content.CopyFrom(
            pb.FileContent(
                data=content.data,
                offset=content.offset,
                next_offset=content.next_offset,
                truncated=content.truncated,
            )
        )
    return response
