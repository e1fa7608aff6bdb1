"""`transcript_search`: what was said earlier, also where the conversation no longer shows it."""

from typing import Self

from pydantic import Field, model_validator
from spawnmesh.transcript.v1 import search_service_pb2 as pb

from spawnmesh_runner.retry import persistently
from spawnmesh_runner.tools.tool import Arguments, Result, Scope, Tool

MAX_HITS = 50


class TranscriptSearch(Arguments):
    words: str = Field(
        default="",
        max_length=1024,
        description='Words that a message must all have; "in quotes" side by side, -word not at all, word* any that begins so.',
    )
    pattern: str = Field(default="", max_length=1024, description="In place of words: a regular expression (RE2).")
    with_children: bool = Field(default=False, description="Search also what your child agents said.")
    before_seq: int | None = Field(default=None, gt=0, description="Only messages before this `seq`.")
    limit: int = Field(default=10, gt=0, le=MAX_HITS, description="Most hits to give.")
    page: str = Field(default="", max_length=512, description="`next_page` of the answer before, all else as it was.")

    @model_validator(mode="after")
    def _has_one_query(self) -> Self:
        if bool(self.words) == bool(self.pattern):
            raise ValueError("give either words or pattern")
        return self


async def _run(scope: Scope, arguments: TranscriptSearch) -> Result:
    request = pb.SearchEntriesRequest(
        session_id=scope.session_id,
        with_descendants=arguments.with_children,
        before_seq=arguments.before_seq or 0,
        page_size=arguments.limit,
        page_token=arguments.page,
    )
    if arguments.words:
        request.words = arguments.words
    else:
        request.pattern = arguments.pattern
    mesh = scope.mesh
    found = await persistently(mesh.transcript, mesh.searches.SearchEntries, request)
    # The call itself says what it looks for, and is stored already.
    hits = [_hit(hit) for hit in found.hits if hit.entry_id != scope.answer_entry_id]
    return {"hits": hits, "next_page": found.next_page_token}


def _hit(hit: pb.SearchHit) -> Result:
    told: dict[str, object] = {"session_id": hit.session_id, "seq": hit.seq, "text": hit.snippet}
    if hit.file_id:
        told |= {"file_id": hit.file_id, "offset": hit.byte_offset}
    return told


TRANSCRIPT_SEARCH = Tool(
    name="transcript_search",
    description=(
        "Finds earlier messages and tool outputs of this conversation, newest first, also those that are no longer shown or only summarized. A"
        " hit with a `file_id` is in a long output: transcript_describe reads it from `offset` on."
    ),
    arguments=TranscriptSearch,
    run=_run,
    idempotent=True,
)
