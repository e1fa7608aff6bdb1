"""The steps of this service's operations: a job takes them one by one until the work is done."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import cast

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_postgres.long_running.operation import OperationType, Progress, Step, Work

from spawnmesh_attachment_blob.domain.garbage import GarbageCounts, GarbagePosition
from spawnmesh_attachment_blob.operations.garbage_collector import GarbageCollector
from spawnmesh_attachment_blob.operations.operation_types import COLLECT


@dataclass(frozen=True, slots=True)
class BlobSteps:
    """A step collects one page of garbage."""

    collector: GarbageCollector

    def by_method(self) -> Mapping[str, tuple[OperationType, Step]]:
        """Return the steps by the RPC that starts the operation."""
        return {COLLECT.method: (COLLECT, self.collect)}

    async def collect(self, work: Work) -> Progress:
        """Collect a page. Raises NOT_FOUND for a tenant that is purged, and S3Failed."""
        request = cast(pb.CollectGarbageRequest, work.request)
        before = cast(pb.CollectGarbageResponse, work.response).counts
        counts = GarbageCounts(**{one.name: getattr(before, one.name) for one in fields(GarbageCounts)})
        await self.collector.require_tenant(work.tenant_id)
        following = await self.collector.collect_page(
            work.tenant_id, GarbagePosition.parse(work.position), counts, dry_run=request.dry_run
        )
        response = pb.CollectGarbageResponse(counts=pb.GarbageCounts(**asdict(counts)))
        if following is None:
            return Progress(response, work.position, counts.done_count, is_done=True)
        return Progress(response, str(following), counts.done_count)
