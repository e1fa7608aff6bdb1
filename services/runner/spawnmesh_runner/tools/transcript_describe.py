"""`transcript_describe`: what is behind a reference to an earlier output that was too long to be shown again."""

from pydantic import Field, model_validator
from spawnmesh.transcript.v1 import file_service_pb2 as pb

from spawnmesh_runner.retry import persistently
from spawnmesh_runner.tools.tool import Arguments, Result, Scope, Tool, ToolRefused

MAX_READ_BYTES = 500 * 1024
_TEXT_TYPE = "text/plain"


class TranscriptDescribe(Arguments):
    file_id: str = Field(pattern="^file_[0-9a-z]{26}$", description="The file, as the reference names it.")
    expand: bool = Field(default=True, description="Give the content, too; without it only what the file is.")
    offset: int | None = Field(default=None, ge=0, description="First byte to read.")
    limit: int | None = Field(default=None, gt=0, le=MAX_READ_BYTES, description="Most bytes to read; else 32 KiB.")
    first_line: int | None = Field(default=None, gt=0, description="First line to read, from 1, in place of bytes.")
    line_count: int | None = Field(default=None, gt=0, description="Most lines to read.")

    @model_validator(mode="after")
    def _one_range(self) -> "TranscriptDescribe":
        if (self.offset, self.limit) != (None, None) and (self.first_line, self.line_count) != (None, None):
            raise ValueError("give bytes or lines, not both")
        return self


async def _run(scope: Scope, arguments: TranscriptDescribe) -> Result:
    request = pb.DescribeFileRequest(file_id=arguments.file_id, expand=arguments.expand)
    if (arguments.first_line, arguments.line_count) != (None, None):
        request.lines.first_line = arguments.first_line or 1
        request.lines.line_count = arguments.line_count or 0
    else:
        request.bytes.offset = arguments.offset or 0
        request.bytes.length = arguments.limit or 0
    mesh = scope.mesh
    described = await persistently(mesh.transcript, mesh.files.DescribeFile, request)
    if arguments.expand and described.mime_type != _TEXT_TYPE:
        raise ToolRefused(
            "NOT_TEXT", f"it is {described.mime_type} of {described.size_bytes} bytes, and not shown again"
        )
    return rendered(described)


def rendered(described: pb.DescribeFileResponse) -> Result:
    """What the model reads: what the file is, and as much of its text as came."""
    answer: dict[str, object] = {
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
        answer |= {
            "offset": content.offset,
            "text": content.data.decode(),
            "truncated": content.truncated,
            "next_offset": content.next_offset,
        }
    return answer


TRANSCRIPT_DESCRIBE = Tool(
    name="transcript_describe",
    description=(
        "Reads an earlier tool output of which the conversation only shows `[Tool output file_…]`, at most 32 KiB a call unless `limit` says"
        " otherwise. `truncated` says that more was asked for than came: go on at `next_offset`."
    ),
    arguments=TranscriptDescribe,
    run=_run,
    idempotent=True,
)
