"""ListEntries. Returns the entries by seq, upwards or downwards, page by page."""

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.entries import PagePosition
from spawnmesh_transcript.operations.callers import readable_key
from spawnmesh_transcript.operations.entry_pages import read_page
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_filter, render_entry, render_head

_DEFAULT_PAGE_SIZE = 100
_MAX_SEQ = 2**63 - 1


async def list_entries(
    request: pb.ListEntriesRequest, caller: Caller, deps: Dependencies
) -> pb.ListEntriesResponse:
    """Return a page of complete entries and the head.

    Raises NOT_FOUND, INVALID_REQUEST for a page token of another list, and what `rehydrate_entries`
    raises.
    """
    key = await readable_key(deps.database, request.session_id, caller)
    page = await read_page(
        deps.database,
        deps.blobs,
        key,
        _parse_position(request, caller),
        parse_filter(request.filter),
        page_size=request.page_size or _DEFAULT_PAGE_SIZE,
    )
    response = pb.ListEntriesResponse(head=render_head(page.head))
    if page.has_more:
        response.next_page_token = page_token([page.read_seq], request, caller.tenant_id, caller.session_id)
    for entry in page.entries:
        render_entry(entry, response.entries.add())
    return response


def _parse_position(request: pb.ListEntriesRequest, caller: Caller) -> PagePosition:
    last = position_of(request, (int,), caller.tenant_id, caller.session_id)
    is_backwards = request.HasField("before_seq")
    first = (request.before_seq or _MAX_SEQ) if is_backwards else request.after_seq
    return PagePosition(last[0] if last else first, is_backwards)
