"""StageSet. Checks all items, uploads and references, then stores one set, or stores nothing."""

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.messages import parse_set, render_set


async def stage_set(request: pb.StageSetRequest, caller: Caller, deps: Dependencies) -> pb.StageSetResponse:
    """Store all files of the set, or none. Durable on return."""
    staged = await deps.stager.stage_set(caller.tenant_id, parse_set(request))
    return pb.StageSetResponse(set=render_set(staged))
