"""GetSet. Returns a set and its manifest."""

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_attachment_blob.domain.sets import require_set
from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.messages import parse_set_id, reader_session_id, render_set
from spawnmesh_attachment_blob.store import sets


async def get_set(request: pb.GetSetRequest, caller: Caller, deps: Dependencies) -> pb.GetSetResponse:
    """Return the set and its manifest. Raises NOT_FOUND."""
    set_id = parse_set_id(request.set_id)
    async with deps.database.transaction(caller.tenant_id) as connection:
        found = await sets.get_set(connection, caller.tenant_id, set_id)
    return pb.GetSetResponse(set=render_set(require_set(found, set_id, reader_session_id(caller))))
