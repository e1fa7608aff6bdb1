"""Calls of the model-router service."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh.model_router.v1.routing_pb2 import RoutingPolicy
from spawnmesh_runtime.peers import Peer

from spawnmesh_session.clients.purge_progress import PURGE_SECONDS, PurgeProgress

if TYPE_CHECKING:  # The types of asyncio stubs exist only for type checkers.
    from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceAsyncStub


@dataclass(frozen=True, slots=True)
class ModelRouter:
    """The routing of tenants."""

    peer: Peer
    timeout_seconds: float

    @property
    def _stub(self) -> "ModelRouterServiceAsyncStub":
        return ModelRouterServiceStub(self.peer.channel)

    async def prepare_tenant(self, settings_version: int, policy: RoutingPolicy) -> None:
        """Set the policy of the tenant's model calls."""
        request = pb.PrepareTenantRequest(settings_version=settings_version, policy=policy)
        await self.peer.unary(self._stub.PrepareTenant, request, timeout_seconds=self.timeout_seconds)

    async def purge_tenant(self, settings_version: int) -> PurgeProgress:
        """Remove a bounded part of the tenant that had this version of settings last."""
        request = pb.PurgeTenantRequest(settings_version=settings_version)
        part = await self.peer.unary(self._stub.PurgeTenant, request, timeout_seconds=PURGE_SECONDS)
        return PurgeProgress(part.done, part.deleted_row_count)
