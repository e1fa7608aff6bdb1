"""CollectGarbage.

Compares a tenant's bucket with its rows in both directions, and repairs what interrupted work left,
once it is older than the grace period.
"""

from dataclasses import asdict

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_attachment_blob.rpc.dependencies import Dependencies


async def collect_garbage(
    request: pb.CollectGarbageRequest, caller: Caller, deps: Dependencies
) -> pb.CollectGarbageResponse:
    """Collect the garbage of the tenant that the operator names. Raises NOT_FOUND and S3Failed."""
    counts = await deps.collector.collect(request.tenant_id, dry_run=request.dry_run)
    return pb.CollectGarbageResponse(counts=pb.GarbageCounts(**asdict(counts)))
