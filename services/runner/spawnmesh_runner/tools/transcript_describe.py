"""The tool `transcript_describe`: read an earlier output that the context only refers to."""

from pydantic import Field, model_validator
from spawnmesh_client import file_descriptions as files

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.domain.tools import ToolRefused
from spawnmesh_runner.tools.calling.tool import Arguments, CallScope, Result, TextResult, Tool


class TranscriptDescribe(Arguments):
    file_id: str = Field(pattern="^file_[0-9a-z]{26}(_[0-9]{1,3}(_[0-9]{1,6})?)?$", description=files.FILE_ID)
    expand: bool = Field(default=True, description=files.EXPAND)
    offset: int | None = Field(default=None, ge=0, description=files.OFFSET)
    limit: int | None = Field(default=None, gt=0, le=files.MAX_READ_BYTES, description=files.LIMIT)
    first_line: int | None = Field(default=None, gt=0, description=files.FIRST_LINE)
    line_count: int | None = Field(default=None, gt=0, description=files.LINE_COUNT)

    @model_validator(mode="after")
    def _one_range(self) -> "TranscriptDescribe":
        if (self.offset, self.limit) != (None, None) and (self.first_line, self.line_count) != (None, None):
            raise ValueError(files.TWO_RANGES)
        return self


async def _execute(scope: CallScope, arguments: TranscriptDescribe) -> Result:
    request = files.describe_request(
        arguments.file_id,
        expand=arguments.expand,
        offset=arguments.offset,
        limit=arguments.limit,
        first_line=arguments.first_line,
        line_count=arguments.line_count,
    )
    peers = scope.peers
    described = await call_with_retry(peers.transcript, peers.files.DescribeFile, request)
    if why := files.not_shown(described, expand=arguments.expand):
        raise ToolRefused("NOT_TEXT", why)
    facts = files.file_facts(described)
    return TextResult(facts, described.content.data.decode()) if described.HasField("content") else facts


TRANSCRIPT_DESCRIBE = Tool(
    name=files.NAME,
    description=files.DESCRIPTION,
    arguments=TranscriptDescribe,
    execute=_execute,
    idempotent=True,
)
