"""FileService on the wire."""

from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh.transcript.v1 import file_service_pb2 as pb
from spawnmesh.transcript.v1 import file_service_pb2_grpc as pb_grpc
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import current_caller

from spawnmesh_transcript.activities import Activities
from spawnmesh_transcript.describing import Described, describe_file
from spawnmesh_transcript.domain.cutting import Bytes, Lines
from spawnmesh_transcript.domain.large_results import file_id_of
from spawnmesh_transcript.metrics import TierMetrics
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.store import Key

Context = grpc.aio.ServicerContext[Any, Any]


class FileServicer(pb_grpc.FileServiceServicer):
    """Each RPC does what the contract says of it."""

    def __init__(self, database: Database, payloads: Payloads, metrics: TierMetrics, activities: Activities) -> None:
        self._database = database
        self._payloads = payloads
        self._metrics = metrics
        self._activities = activities

    async def DescribeFile(self, request: pb.DescribeFileRequest, context: Context) -> pb.DescribeFileResponse:
        caller = current_caller()
        part = _part(request)
        described = await describe_file(self._database, self._payloads, request.file_id, caller, part)
        asked = (request.WhichOneof("range") or "start") if request.expand else "none"
        self._metrics.drilled_down(part=asked, caller=caller.kind)
        read = activity_pb.DrilledDown(
            file_id=request.file_id,
            part=asked,
            caller=caller.kind,
            size_bytes=len(described.content.data) if described.content else 0,
        )
        key = Key(caller.tenant_id, described.payload.session_id)
        self._activities.record_later(key, activity_pb.Activity(drilled_down=read))
        return _render(described)


def _part(request: pb.DescribeFileRequest) -> Bytes | Lines | None:
    if not request.expand:
        return None
    if request.HasField("lines"):
        return Lines(request.lines.first_line, request.lines.line_count)
    return Bytes(request.bytes.offset, request.bytes.length)


def _render(described: Described) -> pb.DescribeFileResponse:
    payload = described.payload
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
    if content := described.content:
        response.content.CopyFrom(
            pb.FileContent(
                data=content.data,
                offset=content.offset,
                next_offset=content.next_offset,
                truncated=content.truncated,
            )
        )
    return response
