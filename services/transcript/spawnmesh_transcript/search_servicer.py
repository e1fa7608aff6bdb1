"""SearchService on the wire."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from typing import Any, Literal

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh.transcript.v1 import search_service_pb2 as pb
from spawnmesh.transcript.v1 import search_service_pb2_grpc as pb_grpc
from spawnmesh_core.errors import invalid
from spawnmesh_runtime.caller import current_caller

from spawnmesh_transcript.domain.entries import EntryKind
from spawnmesh_transcript.hit_files import files_of_hits
from spawnmesh_transcript.parse import parse_filter, readable_key
from spawnmesh_transcript.search_store import Range
from spawnmesh_transcript.searching import Hit, Means, Search, search_entries
from spawnmesh_transcript.store import Filter

Context = grpc.aio.ServicerContext[Any, Any]

_DEFAULT_PAGE_SIZE = 20
_BEHIND_ALL = 2**63 - 1
_READ_BY_MODELS = Filter(
    kinds=frozenset({EntryKind.MESSAGE, EntryKind.NOTE, EntryKind.COMPACTION, EntryKind.BRANCH_SUMMARY})
)


class SearchServicer(pb_grpc.SearchServiceServicer):
    """Each RPC does what the contract says of it."""

    def __init__(self, means: Means) -> None:
        self._means = means

    async def SearchEntries(self, request: pb.SearchEntriesRequest, context: Context) -> pb.SearchEntriesResponse:
        database = self._means.database
        key = await readable_key(database, request.session_id, current_caller())
        hits, has_more = await search_entries(self._means, key, _parse(request))
        files = await files_of_hits(database, key.tenant_id, hits)
        return pb.SearchEntriesResponse(
            hits=[_render(hit, files.get(hit, "")) for hit in hits],
            next_page_token=_page_token(hits[-1]) if has_more else "",
        )


def _parse(request: pb.SearchEntriesRequest) -> Search:
    chosen = parse_filter(request.filter)
    resume_session_id, resume_before_seq = _resume(request.page_token)
    return Search(
        words=request.words,
        pattern=request.pattern,
        within=Range(
            after_seq=request.after_seq,
            before_seq=request.before_seq or _BEHIND_ALL,
            choice=chosen if chosen.kinds or chosen.roles else _READ_BY_MODELS,
            from_time=_time(request, "from_time"),
            before_time=_time(request, "before_time"),
            with_superseded=request.with_superseded,
        ),
        with_descendants=request.with_descendants,
        page_size=request.page_size or _DEFAULT_PAGE_SIZE,
        resume_session_id=resume_session_id,
        resume_before_seq=resume_before_seq,
    )


def _time(request: pb.SearchEntriesRequest, field: Literal["from_time", "before_time"]) -> datetime | None:
    if not request.HasField(field):
        return None
    given: Timestamp = getattr(request, field)
    try:
        return given.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise invalid(field, "is no time between the years 1 and 9999") from None


def _page_token(last: Hit) -> str:
    return urlsafe_b64encode(json.dumps([last.session_id, last.seq]).encode()).decode()


def _resume(token: str) -> tuple[str, int]:
    if not token:
        return "", 0
    try:
        session_id, seq = json.loads(urlsafe_b64decode(token))
        return str(session_id), min(max(0, int(seq)), _BEHIND_ALL)
    except (ValueError, TypeError, OverflowError):
        raise invalid("page_token", "is none that was given out") from None


def _render(hit: Hit, file_id: str) -> pb.SearchHit:
    create_time = Timestamp()
    create_time.FromDatetime(hit.create_time)
    return pb.SearchHit(
        session_id=hit.session_id,
        entry_id=hit.entry_id,
        seq=hit.seq,
        kind=entry_pb.EntryKind.Value(f"ENTRY_KIND_{hit.kind}"),
        create_time=create_time,
        path=hit.path,
        byte_offset=hit.byte_offset,
        snippet=hit.snippet,
        file_id=file_id,
    )
