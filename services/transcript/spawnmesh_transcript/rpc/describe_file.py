"""DescribeFile. Describes a file and, with a range, returns its content."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh.transcript.v1 import file_service_pb2 as pb
from spawnmesh_core.errors import MeshError, invalid, not_found
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.file_parts import Bytes, Content, LineCutter, Lines, cut_bytes, window_of
from spawnmesh_transcript.domain.large_results import blob_id_of, file_id_of
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.bodies.stubs import TEXT_TYPE, payload_of
from spawnmesh_transcript.operations.rehydration import rehydrate_entries
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import readable_key
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import payloads as payload_store
from spawnmesh_transcript.store import planner
from spawnmesh_transcript.store.payloads import StoredPayload


async def describe_file(
    request: pb.DescribeFileRequest, caller: Caller, deps: Dependencies
) -> pb.DescribeFileResponse:
    """Return the file that a reference names, and the requested part of its content.

    Raises NOT_FOUND also if the caller may not read the file's transcript, INVALID_REQUEST for
    lines that the file does not have, DEPENDENCY_UNAVAILABLE, and STORED_HASH_DIFFERS.
    """
    part = _parse_part(request)
    payload, key = await _find(request.file_id, caller, deps)
    match part:
        case None:
            content = None
        case Bytes():
            content = await _read_bytes(deps, key, payload, part)
        case Lines():
            content = await _read_lines(deps, key, payload, part)
    part_name = (request.WhichOneof("range") or "start") if request.expand else "none"
    deps.stub_metrics.drilled_down(part=part_name, caller=caller.kind)
    activity = activity_pb.DrilledDown(
        file_id=request.file_id,
        part=part_name,
        caller=caller.kind,
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
        await planner.keep_index_order(connection)
        payload = await payload_store.read_payload(connection, caller.tenant_id, blob_id_of(file_id))
    if payload is None:
        raise not_found("file", file_id)
    try:
        return payload, await readable_key(deps.database, payload.session_id, caller)
    except MeshError as error:
        if error.reason is not Reason.NOT_FOUND:
            raise
        raise not_found("file", file_id) from None


async def _read_bytes(deps: Dependencies, key: Key, payload: StoredPayload, wanted: Bytes) -> Content:
    window = window_of(wanted, size=payload.size_bytes)
    data = bytearray()
    if window.length:
        async with aclosing(_read_pieces(deps, key, payload, window)) as pieces:
            async for piece in pieces:
                data += piece
    is_text = payload.mime_type == TEXT_TYPE
    return cut_bytes(bytes(data), window.offset, wanted, size=payload.size_bytes, is_text=is_text)


async def _read_lines(deps: Dependencies, key: Key, payload: StoredPayload, wanted: Lines) -> Content:
    if payload.mime_type != TEXT_TYPE:
        raise invalid("lines", "the file is no text: give a range of bytes")
    if wanted.first_line > max(payload.line_count, 1):
        raise invalid("lines.first_line", f"the file has {payload.line_count} lines")
    cutter = LineCutter(wanted)
    async with aclosing(_read_pieces(deps, key, payload, Bytes(0, payload.size_bytes))) as pieces:
        async for piece in pieces:
            if cutter.feed(piece):
                break
    return cutter.content(size=payload.size_bytes)


async def _read_pieces(
    deps: Dependencies, key: Key, payload: StoredPayload, span: Bytes
) -> AsyncGenerator[bytes, None]:
    """Read the bytes of the span: from the entry if the blob store may not have the payload yet."""
    if payload.is_stored:
        try:
            async with aclosing(
                deps.blobs.read(payload.blob_id, offset=span.offset, length=span.length)
            ) as responses:
                async for response in responses:
                    yield response.data
        # Released meanwhile, with the transcript or with its references.
        except MeshError as error:
            if error.reason in (Reason.NOT_FOUND, Reason.ATTACHMENT_SET_STATE):
                raise not_found("file", file_id_of(payload.blob_id)) from None
            raise
        return
    async with deps.database.transaction(key.tenant_id) as connection:
        await planner.keep_index_order(connection)
        entries = await entry_store.get_entries(connection, key, [payload.seq])
    # The payload may have been uploaded and externalized since its row was read.
    [entry] = await rehydrate_entries(deps.database, deps.blobs, key, [*entries.values()])
    block = entry_pb.EntryBody.FromString(entry.body).message.content[payload.block_index]
    yield (payload_of(block) or b"")[span.offset : span.offset + span.length]


def _render(payload: StoredPayload, content: Content | None) -> pb.DescribeFileResponse:
    create_time = Timestamp()
    create_time.FromDatetime(payload.create_time)
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
        create_time=create_time,
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
