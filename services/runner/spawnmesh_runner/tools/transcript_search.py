"""The tool `transcript_search`: find earlier messages, also those that left the context."""

from typing import Self

from pydantic import Field, model_validator
from spawnmesh.transcript.v1 import search_service_pb2 as pb

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.tools.calling.tool import Arguments, CallScope, Result, Tool, list_result

MAX_HITS = 50


class TranscriptSearch(Arguments):
    words: str = Field(
        default="",
        max_length=1024,
        description=(
            'Words that a message must all have; "in quotes" side by side, -word not at all,'
            " word* any that begins so."
        ),
    )
    pattern: str = Field(
        default="", max_length=1024, description="In place of words: a regular expression (RE2)."
    )
    with_children: bool = Field(default=False, description="Search also what your child agents said.")
    before_seq: int | None = Field(default=None, gt=0, description="Only messages before this `seq`.")
    limit: int = Field(default=10, gt=0, le=MAX_HITS, description="Most hits to give.")
    page: str = Field(
        default="", max_length=512, description="`next_page` of the answer before, all else as it was."
    )

    @model_validator(mode="after")
    def _has_one_query(self) -> Self:
        if bool(self.words) == bool(self.pattern):
            raise ValueError("give either words or pattern")
        return self


async def _execute(scope: CallScope, arguments: TranscriptSearch) -> Result:
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
    peers = scope.peers
    found = await call_with_retry(peers.transcript, peers.searches.SearchEntries, request)
    # Skip the entry of this very call: it is stored already and contains the query.
    hits = [_hit(hit) for hit in found.hits if hit.entry_id != scope.answer_entry_id]
    return list_result({"next_page": found.next_page_token}, hits)


def _hit(hit: pb.SearchHit) -> dict[str, object]:
    shown: dict[str, object] = {"session_id": hit.session_id, "seq": hit.seq, "text": hit.snippet}
    if hit.file_id:
        shown |= {"file_id": hit.file_id, "offset": hit.byte_offset}
    return shown


TRANSCRIPT_SEARCH = Tool(
    name="transcript_search",
    description=(
        "Finds earlier messages and tool outputs of this conversation, newest first, also those that are no"
        " longer shown or only summarized, one line of JSON for each. A hit with a `file_id` is in a long"
        " output: transcript_describe reads it from `offset` on."
    ),
    arguments=TranscriptSearch,
    execute=_execute,
    idempotent=True,
)
