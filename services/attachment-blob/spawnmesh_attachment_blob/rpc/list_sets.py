"""ListSets. Returns the tenant's sets, newest first, without sets that were never completed."""

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.messages import parse_session_id, render_set
from spawnmesh_attachment_blob.store import sets

_PAGE_SIZE = 50


async def list_sets(request: pb.ListSetsRequest, caller: Caller, deps: Dependencies) -> pb.ListSetsResponse:
    """Return a page of the tenant's sets, newest first."""
    session_id = parse_session_id(request.session_id) if request.session_id else ""
    last, size = position_of(request, (str,), caller.tenant_id), request.page_size or _PAGE_SIZE
    before = last[0] if last else ""
    async with deps.database.transaction(caller.tenant_id) as connection:
        found = await sets.list_sets(connection, caller.tenant_id, session_id, before, size + 1)
    token = page_token([found[size - 1].set_id], request, caller.tenant_id) if len(found) > size else ""
    return pb.ListSetsResponse(sets=[render_set(one) for one in found[:size]], next_page_token=token)
