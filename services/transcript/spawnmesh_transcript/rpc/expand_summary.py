"""ExpandSummary.

Returns the sources of a summary page by page, lowest seq first: the previous summary if there is
one, then the messages and notes.
"""

from spawnmesh.transcript.v1 import compaction_service_pb2 as pb
from spawnmesh_core.errors import not_found
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.entries import StoredEntry
from spawnmesh_transcript.operations.callers import readable_key
from spawnmesh_transcript.operations.entry_pages import PAGE_MAX_BYTES
from spawnmesh_transcript.operations.rehydration import rehydrate_entries
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import render_entry
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import snapshots
from spawnmesh_transcript.store import summaries as summary_store

_DEFAULT_PAGE_SIZE = 100


async def expand_summary(
    request: pb.ExpandSummaryRequest, caller: Caller, deps: Dependencies
) -> pb.ExpandSummaryResponse:
    """Return a page of the messages and notes that a summary was made of.

    The first page begins with the previous summary, if there is one. Raises NOT_FOUND for an entry
    that is no summary of the transcript, and INVALID_REQUEST for a page token of another list.
    """
    if "\x00" in request.entry_id:
        raise not_found("summary", request.entry_id)
    key = await readable_key(deps.database, request.session_id, caller)
    last = position_of(request, (int,), caller.tenant_id, caller.session_id)
    page_size = request.page_size or _DEFAULT_PAGE_SIZE
    async with deps.database.transaction(key.tenant_id) as connection:
        await snapshots.begin_snapshot(connection)
        summary = await summary_store.find_summary(connection, key, request.entry_id)
        if summary is None:
            raise not_found("summary", request.entry_id)
        previous: list[StoredEntry] = []
        if summary.previous_seq is not None and last is None:
            token_count = await summary_store.read_summary_token_count(connection, key, summary.previous_seq)
            entries = await entry_store.read_entries(connection, key, [summary.previous_seq])
            previous = [entry._replace(token_count=token_count) for entry in entries]
        sources, has_more = await summary_store.list_sources(
            connection,
            key,
            summary,
            after_seq=last[0] if last else 0,
            page_size=max(1, page_size - len(previous)),
            max_bytes=PAGE_MAX_BYTES,
        )
    if len(previous) + len(sources) > page_size:  # A page of one entry.
        sources, has_more = [], True
    response = pb.ExpandSummaryResponse()
    if has_more:
        end_seq = sources[-1].seq if sources else summary.first_source_seq - 1
        response.next_page_token = page_token([end_seq], request, caller.tenant_id, caller.session_id)
    for entry in (*previous, *await rehydrate_entries(deps.database, deps.blobs, key, sources)):
        render_entry(entry, response.entries.add())
    return response
