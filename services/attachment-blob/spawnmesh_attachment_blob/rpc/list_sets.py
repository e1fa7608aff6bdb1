"""ListSets. Returns the tenant's sets, newest first, without sets that were never completed."""

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.messages import parse_page_token, parse_session_id, render_set
from spawnmesh_attachment_blob.store import sets

_PAGE_SIZE = 50


async def list_sets(request: pb.ListSetsRequest, caller: Caller, deps: Dependencies) -> pb.ListSetsResponse:
    """Return a page of the tenant's sets, newest first."""
    session_id = parse_session_id(request.session_id) if request.session_id else ""
    before, size = parse_page_token(request.page_token), request.page_size or _PAGE_SIZE
    async with deps.database.transaction(caller.tenant_id) as connection:
        found = await sets.list_sets(connection, caller.tenant_id, session_id, before, size + 1)
    token = found[size - 1].set_id if len(found) > size else ""
    return pb.ListSetsResponse(sets=[render_set(one) for one in found[:size]], next_page_token=token)
