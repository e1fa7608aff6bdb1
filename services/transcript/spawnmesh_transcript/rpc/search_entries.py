"""SearchEntries.

Searches the entries of the session, and with `with_descendants` of all its descendants, newest
first in each session.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh.transcript.v1 import search_service_pb2 as pb
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_core.errors import invalid
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.entries import EntryFilter, EntryKind
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.callers import readable_key
from spawnmesh_transcript.operations.search.find_entries import Hit, Search, find_entries
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_filter
from spawnmesh_transcript.store import payloads as payload_store
from spawnmesh_transcript.store import tenants as tenant_store
from spawnmesh_transcript.store.search import SearchRange

_DEFAULT_PAGE_SIZE = 20
_MAX_SEQ = 2**63 - 1
_READ_BY_MODELS = EntryFilter(
    kinds=frozenset({EntryKind.MESSAGE, EntryKind.NOTE, EntryKind.COMPACTION, EntryKind.BRANCH_SUMMARY})
)
_TEXT_BLOCK = re.compile(r"message\.content\[([0-9]+)\]\.text\.text")


async def search_entries(
    request: pb.SearchEntriesRequest, caller: Caller, deps: Dependencies
) -> pb.SearchEntriesResponse:
    """Return a page of hits, newest first. A hit in a text that contexts refer to names the file.

    Raises what `find_entries` raises.
    """
    key = await readable_key(deps.database, request.session_id, caller)
    hits, has_more = await find_entries(deps.search, key, _parse(request, caller))
    files = await _files_of_hits(deps.database, key.tenant_id, hits)
    return pb.SearchEntriesResponse(
        hits=[_render(hit, files.get(hit, "")) for hit in hits],
        next_page_token=_token_after(hits[-1], request, caller) if has_more else "",
    )


def _parse(request: pb.SearchEntriesRequest, caller: Caller) -> Search:
    wanted = parse_filter(request.filter)
    last = position_of(request, (str, int), caller.tenant_id, caller.session_id)
    resume_session_id, resume_before_seq = last or ("", 0)
    return Search(
        words=request.words,
        pattern=request.pattern,
        within=SearchRange(
            after_seq=request.after_seq,
            before_seq=request.before_seq or _MAX_SEQ,
            wanted=wanted if wanted.kinds or wanted.roles else _READ_BY_MODELS,
            from_time=_parse_time(request, "from_time"),
            before_time=_parse_time(request, "before_time"),
            with_superseded=request.with_superseded,
        ),
        with_descendants=request.with_descendants,
        page_size=request.page_size or _DEFAULT_PAGE_SIZE,
        resume_session_id=resume_session_id,
        resume_before_seq=resume_before_seq,
    )


def _parse_time(
    request: pb.SearchEntriesRequest, field: Literal["from_time", "before_time"]
) -> datetime | None:
    if not request.HasField(field):
        return None
    given: Timestamp = getattr(request, field)
    try:
        return given.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise invalid(field, "is no time between the years 1 and 9999") from None


def _token_after(last: Hit, request: pb.SearchEntriesRequest, caller: Caller) -> str:
    return page_token([last.session_id, last.seq], request, caller.tenant_id, caller.session_id)


async def _files_of_hits(database: Database, tenant_id: str, hits: Iterable[Hit]) -> dict[Hit, str]:
    """Return the file ids of the hits in texts that contexts refer to, as a context shows them."""
    blocks = {hit: int(found[1]) for hit in hits if (found := _TEXT_BLOCK.fullmatch(hit.path))}
    if not blocks:
        return {}
    files: dict[tuple[str, int, int], str] = {}
    async with database.transaction(tenant_id) as connection:
        policy = await tenant_store.read_policy(connection, tenant_id)
        if not policy.stub_large_tool_payloads:
            return {}
        for session_id in {hit.session_id for hit in blocks}:
            seqs = [hit.seq for hit in blocks if hit.session_id == session_id]
            by_seq = await payload_store.list_stored_files(connection, Key(tenant_id, session_id), seqs)
            for seq, stored in by_seq.items():
                files |= {(session_id, seq, file.block_index): file.file_id for file in stored}
    positions = {hit: (hit.session_id, hit.seq, block) for hit, block in blocks.items()}
    return {hit: files[position] for hit, position in positions.items() if position in files}


def _render(hit: Hit, file_id: str) -> pb.SearchHit:
    return pb.SearchHit(
        session_id=hit.session_id,
        entry_id=hit.entry_id,
        seq=hit.seq,
        kind=entry_pb.EntryKind.Value(f"ENTRY_KIND_{hit.kind}"),
        create_time=timestamp_of(hit.create_time),
        path=hit.path,
        byte_offset=hit.byte_offset,
        snippet=hit.snippet,
        file_id=file_id,
    )
