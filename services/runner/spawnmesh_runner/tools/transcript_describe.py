"""The tool `transcript_describe`: read an earlier output that the context only refers to."""

from pydantic import Field, model_validator
from spawnmesh.transcript.v1 import file_service_pb2 as pb

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.domain.tools import ToolRefused
from spawnmesh_runner.tools.calling.tool import Arguments, CallScope, Result, TextResult, Tool

MAX_READ_BYTES = 500 * 1024
_TEXT_TYPE = "text/plain"


class TranscriptDescribe(Arguments):
    file_id: str = Field(
        pattern="^file_[0-9a-z]{26}(_[0-9]{1,3}(_[0-9]{1,6})?)?$",
        description="The file, as the reference names it.",
    )
    expand: bool = Field(default=True, description="Give the content, too; without it only what the file is.")
    offset: int | None = Field(default=None, ge=0, description="First byte to read.")
    limit: int | None = Field(
        default=None, gt=0, le=MAX_READ_BYTES, description="Most bytes to read; else 32 KiB."
    )
    first_line: int | None = Field(
        default=None, gt=0, description="First line to read, from 1, in place of bytes."
    )
    line_count: int | None = Field(default=None, gt=0, description="Most lines to read.")

    @model_validator(mode="after")
    def _one_range(self) -> "TranscriptDescribe":
        if (self.offset, self.limit) != (None, None) and (self.first_line, self.line_count) != (None, None):
            raise ValueError("give bytes or lines, not both")
        return self


async def _execute(scope: CallScope, arguments: TranscriptDescribe) -> Result:
    request = pb.DescribeFileRequest(file_id=arguments.file_id, expand=arguments.expand)
    if (arguments.first_line, arguments.line_count) != (None, None):
        request.lines.first_line = arguments.first_line or 1
        request.lines.line_count = arguments.line_count or 0
    else:
        request.bytes.offset = arguments.offset or 0
        request.bytes.length = arguments.limit or 0
    peers = scope.peers
    described = await call_with_retry(peers.transcript, peers.files.DescribeFile, request)
    if arguments.expand and described.mime_type != _TEXT_TYPE:
        raise ToolRefused(
            "NOT_TEXT", f"it is {described.mime_type} of {described.size_bytes} bytes, and not shown again"
        )
    return render_file(described)


def render_file(described: pb.DescribeFileResponse) -> Result:
    """Return what the model reads: the file's description and the returned part of its text."""
    facts: dict[str, object] = {
        "file_id": described.file_id,
        "tool": described.tool_name,
        "about": described.about,
        "type": described.mime_type,
        "bytes": described.size_bytes,
        "lines": described.line_count,
        "sha256": described.sha256,
    }
    if not described.HasField("content"):
        return facts
    content = described.content
    part = {"offset": content.offset, "truncated": content.truncated, "next_offset": content.next_offset}
    return TextResult({**facts, **part}, content.data.decode())


TRANSCRIPT_DESCRIBE = Tool(
    name="transcript_describe",
    description=(
        "Reads an earlier tool output of which the conversation only shows `[Tool output file_…]`, or an"
        " argument of an earlier call of which it only shows `[Left out: file_…]`, at most 32 KiB a call"
        " unless `limit` says otherwise. `truncated` says that less was returned than"
        " requested: continue at `next_offset`. The first line of the result is JSON about it, and the text"
        " follows."
    ),
    arguments=TranscriptDescribe,
    execute=_execute,
    idempotent=True,
)
