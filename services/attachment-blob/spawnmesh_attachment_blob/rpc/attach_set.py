"""AttachSet. Moves a set from STAGED to ATTACHED."""

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_attachment_blob.domain.sets import SetState, require_set, wrong_state
from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.messages import parse_set_id, render_set
from spawnmesh_attachment_blob.store import sets


async def attach_set(
    request: pb.AttachSetRequest, caller: Caller, deps: Dependencies
) -> pb.AttachSetResponse:
    """Change the set from STAGED to ATTACHED.

    Raises NOT_FOUND, and ATTACHMENT_SET_STATE for a released set.
    """
    tenant_id, set_id = caller.tenant_id, parse_set_id(request.set_id)
    found = await sets.attach_set(deps.database, tenant_id, set_id)
    if found is not None and found.state is SetState.RELEASED:
        raise wrong_state(set_id, found.state)
    return pb.AttachSetResponse(set=render_set(require_set(found, set_id)))
