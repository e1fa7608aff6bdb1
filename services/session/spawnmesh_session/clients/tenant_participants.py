"""Calls of the services that take part in the life of tenants."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spawnmesh.tenancy.v1 import tenant_participant_service_pb2 as pb
from spawnmesh.tenancy.v1.participant_settings_pb2 import ParticipantSettings
from spawnmesh.tenancy.v1.tenant_participant_service_pb2_grpc import TenantParticipantServiceStub
from spawnmesh.tenancy.v1.tenant_status_pb2 import TenantStatus
from spawnmesh_runtime.peers import Peer

if TYPE_CHECKING:  # The types of asyncio stubs exist only for type checkers.
    from spawnmesh.tenancy.v1.tenant_participant_service_pb2_grpc import TenantParticipantServiceAsyncStub

PURGE_SECONDS = 60.0
"""The deadline of one part of a purge: it removes up to thousands of objects."""


@dataclass(frozen=True, slots=True)
class PurgePart:
    """The items that one part of a purge removed, by kind: the name of a table, or `objects`."""

    done: bool
    removed: Mapping[str, int]

    @property
    def found_nothing(self) -> bool:
        """Return whether the purge is done and this part found nothing to remove."""
        return self.done and not self.removed


@dataclass(frozen=True, slots=True)
class ParticipantClient:
    """One service that keeps something of tenants. The tenant is the impersonated one."""

    service: str
    peer: Peer
    timeout_seconds: float

    @property
    def _stub(self) -> "TenantParticipantServiceAsyncStub":
        return TenantParticipantServiceStub(self.peer.channel)

    async def prepare(self, settings_version: int, settings: ParticipantSettings) -> None:
        """Let the settings hold from now on, unless newer ones do."""
        request = pb.PrepareTenantRequest(settings_version=settings_version, settings=settings)
        await self.peer.unary(self._stub.PrepareTenant, request, timeout_seconds=self.timeout_seconds)

    async def purge(self, settings_version: int) -> PurgePart:
        """Remove a bounded part of the tenant that had this version of settings last."""
        request = pb.PurgeTenantRequest(settings_version=settings_version)
        part = await self.peer.unary(self._stub.PurgeTenant, request, timeout_seconds=PURGE_SECONDS)
        return PurgePart(part.done, {items.kind: items.count for items in part.removed_items})

    async def get_status(self) -> TenantStatus:
        """Return what the service knows and stores of the tenant."""
        answer = await self.peer.unary(
            self._stub.GetTenantStatus, pb.GetTenantStatusRequest(), timeout_seconds=self.timeout_seconds
        )
        return answer.status


TenantParticipants = tuple[ParticipantClient, ...]
"""Every participant, in the order in which a deletion purges them."""
