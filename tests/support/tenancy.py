"""TenantParticipantService, called as the session service does: in the name of the caller's block."""

from dataclasses import dataclass
from typing import Any

from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.tenancy.v1 import tenant_participant_service_pb2 as pb
from spawnmesh.tenancy.v1.participant_settings_pb2 import ParticipantSettings
from spawnmesh.tenancy.v1.tenant_participant_service_pb2_grpc import TenantParticipantServiceStub
from spawnmesh.tenancy.v1.tenant_status_pb2 import TenantStatus
from spawnmesh_runtime.peers import Peer

SECONDS = 60.0


@dataclass(frozen=True)
class Purged:
    """The rows and objects that one call or several calls of PurgeTenant removed."""

    done: bool
    removed: dict[str, int]
    call_count: int = 1

    @property
    def row_count(self) -> int:
        return sum(count for kind, count in self.removed.items() if kind != "objects")


async def call(peer: Peer, method: str, request: Any) -> Any:
    stub: Any = TenantParticipantServiceStub(peer.channel)
    return await peer.unary(getattr(stub, method), request, timeout_seconds=SECONDS)


async def prepare(peer: Peer, version: int, **settings: Any) -> int:
    """Prepare the tenant, without attachments unless they are given. Return the version in force."""
    given = ParticipantSettings(**{"attachments": AttachmentLimits(), **settings})
    request = pb.PrepareTenantRequest(settings_version=version, settings=given)
    return int((await call(peer, "PrepareTenant", request)).settings_version)


async def purge(peer: Peer, version: int = 0) -> Purged:
    """Call PurgeTenant once."""
    answer = await call(peer, "PurgeTenant", pb.PurgeTenantRequest(settings_version=version))
    return Purged(answer.done, {items.kind: items.count for items in answer.removed_items})


async def purge_fully(peer: Peer, version: int = 0) -> Purged:
    """Call PurgeTenant until it is done."""
    removed: dict[str, int] = {}
    for call_count in range(1, 100):
        part = await purge(peer, version)
        for kind, count in part.removed.items():
            removed[kind] = removed.get(kind, 0) + count
        if part.done:
            return Purged(True, removed, call_count)
    raise AssertionError("the purge does not end")


async def status_of(peer: Peer) -> TenantStatus:
    answer: pb.GetTenantStatusResponse = await call(peer, "GetTenantStatus", pb.GetTenantStatusRequest())
    return answer.status


def stored_in(status: TenantStatus) -> dict[str, int]:
    """Return the counts of a status by kind."""
    return {items.kind: items.count for items in status.stored_items}
