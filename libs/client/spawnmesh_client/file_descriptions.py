"""The tool `transcript_describe`: read an earlier output that the context only refers to."""

import json
from typing import Annotated

from spawnmesh.transcript.v1 import file_service_pb2 as pb
from spawnmesh.transcript.v1.file_service_pb2_grpc import FileServiceStub
from spawnmesh.transcript.v1.transcript_service_pb2 import AssembleContextResponse

from spawnmesh_client.repeated_calls import call_again
from spawnmesh_client.tools import CurrentCall, Tool, ToolError, tool

NAME = "transcript_describe"
DESCRIPTION = (
    "Reads an earlier tool output of which the conversation only shows `[Tool output file_…]`, or an"
    " argument of an earlier call of which it only shows `[Left out: file_…]`, at most 32 KiB a call"
    " unless `limit` says otherwise. `truncated` says that less was returned than"
    " requested: continue at `next_offset`. The first line of the result is JSON about it, and the text"
    " follows."
)
FILE_ID = "The file, as the reference names it."
EXPAND = "Give the content, too; without it only what the file is."
OFFSET = "First byte to read."
LIMIT = "Most bytes to read; else 32 KiB."
FIRST_LINE = "First line to read, from 1, in place of bytes."
LINE_COUNT = "Most lines to read."
TWO_RANGES = "give bytes or lines, not both"
MAX_READ_BYTES = 500 * 1024
_TEXT_TYPE = "text/plain"


def has_references(assembled: AssembleContextResponse) -> bool:
    """Return whether a context refers to outputs that the tool reads."""
    return bool(assembled.stubbed or any(cut.file_ids for cut in assembled.cut)) or any(
        "file_" in entry.body.compaction.summary for entry in assembled.entries
    )


def describe_request(
    file_id: str,
    *,
    expand: bool,
    offset: int | None,
    limit: int | None,
    first_line: int | None,
    line_count: int | None,
) -> pb.DescribeFileRequest:
    """Return the request for a range of bytes, or of lines."""
    request = pb.DescribeFileRequest(file_id=file_id, expand=expand)
    if (first_line, line_count) != (None, None):
        request.lines.first_line = first_line or 1
        request.lines.line_count = line_count or 0
    else:
        request.bytes.offset = offset or 0
        request.bytes.length = limit or 0
    return request


def not_shown(described: pb.DescribeFileResponse, *, expand: bool) -> str:
    """Return why the content is not shown; empty if it is, or is not wanted."""
    if not expand or described.mime_type == _TEXT_TYPE:
        return ""
    return f"it is {described.mime_type} of {described.size_bytes} bytes, and not shown again"


def file_facts(described: pb.DescribeFileResponse) -> dict[str, object]:
    """Return the description of a file, and of the returned part of its text."""
    facts: dict[str, object] = {
        "file_id": described.file_id,
        "tool": described.tool_name,
        "about": described.about,
        "type": described.mime_type,
        "bytes": described.size_bytes,
        "lines": described.line_count,
        "sha256": described.sha256,
    }
    if described.HasField("content"):
        content = described.content
        facts["offset"], facts["truncated"] = content.offset, content.truncated
        facts["next_offset"] = content.next_offset
    return facts


async def _describe(
    call: CurrentCall,
    file_id: Annotated[str, FILE_ID],
    *,
    expand: Annotated[bool, EXPAND] = True,
    offset: Annotated[int | None, OFFSET] = None,
    limit: Annotated[int | None, LIMIT] = None,
    first_line: Annotated[int | None, FIRST_LINE] = None,
    line_count: Annotated[int | None, LINE_COUNT] = None,
) -> str:
    if (offset, limit) != (None, None) and (first_line, line_count) != (None, None):
        raise ToolError(TWO_RANGES, reason="INVALID_ARGUMENTS")
    if limit is not None and limit > MAX_READ_BYTES:
        raise ToolError(f"limit: give {MAX_READ_BYTES} at most", reason="INVALID_ARGUMENTS")
    request = describe_request(
        file_id, expand=expand, offset=offset, limit=limit, first_line=first_line, line_count=line_count
    )
    peer = call.run.mesh.wire.service("transcript")
    described = await call_again(peer, FileServiceStub(peer.channel).DescribeFile, request)
    if why := not_shown(described, expand=expand):
        raise ToolError(why, reason="NOT_TEXT")
    line = json.dumps(file_facts(described), ensure_ascii=False)
    return f"{line}\n{described.content.data.decode()}" if described.HasField("content") else line


TRANSCRIPT_DESCRIBE: Tool = tool(_describe, name=NAME, description=DESCRIPTION, idempotent=True)
