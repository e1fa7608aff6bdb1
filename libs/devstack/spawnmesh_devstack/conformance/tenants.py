"""Tenants of cases: created at the session service, or prepared at one service as that does."""

from typing import TYPE_CHECKING
from uuid import uuid4

from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.session.v1.tenant_service_pb2 import CreateTenantRequest, DeleteTenantRequest
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh.tenancy.v1.participant_settings_pb2 import ParticipantSettings
from spawnmesh.tenancy.v1.tenant_participant_service_pb2 import PrepareTenantRequest
from spawnmesh.tenancy.v1.tenant_participant_service_pb2_grpc import TenantParticipantServiceStub
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings

from spawnmesh_devstack.conformance.mesh import MeshAccess

if TYPE_CHECKING:  # The asyncio types of the stubs exist for type checkers only.
    from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceAsyncStub
    from spawnmesh.tenancy.v1.tenant_participant_service_pb2_grpc import TenantParticipantServiceAsyncStub

_SECONDS = 60.0


async def create_tenant(mesh: MeshAccess, tenant_id: str) -> None:
    """Create the tenant. The caller's block is that of an operator."""
    peer = mesh.peers["session"]
    stub: TenantServiceAsyncStub = TenantServiceStub(peer.channel)
    await peer.unary(stub.CreateTenant, CreateTenantRequest(tenant_id=tenant_id), timeout_seconds=_SECONDS)


async def delete_tenant(mesh: MeshAccess, tenant_id: str) -> None:
    """Begin to delete the tenant. The caller's block is that of an operator."""
    peer = mesh.peers["session"]
    stub: TenantServiceAsyncStub = TenantServiceStub(peer.channel)
    request = DeleteTenantRequest(tenant_id=tenant_id, request_id=uuid4().hex)
    await peer.unary(stub.DeleteTenant, request, timeout_seconds=_SECONDS)


async def prepare_tenant(
    mesh: MeshAccess,
    service: str,
    *,
    attachments: AttachmentLimits | None = None,
    transcripts: TranscriptSettings | None = None,
) -> None:
    """Prepare the tenant of the caller's block. Without `attachments`, they are disabled."""
    peer = mesh.peers[service]
    stub: TenantParticipantServiceAsyncStub = TenantParticipantServiceStub(peer.channel)
    settings = ParticipantSettings(attachments=attachments or AttachmentLimits(), transcripts=transcripts)
    request = PrepareTenantRequest(settings_version=1, settings=settings)
    await peer.unary(stub.PrepareTenant, request, timeout_seconds=_SECONDS)
