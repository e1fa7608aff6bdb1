"""Tenants of cases, prepared at one service as the session service does."""

from typing import TYPE_CHECKING

from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.tenancy.v1.participant_settings_pb2 import ParticipantSettings
from spawnmesh.tenancy.v1.tenant_participant_service_pb2 import PrepareTenantRequest
from spawnmesh.tenancy.v1.tenant_participant_service_pb2_grpc import TenantParticipantServiceStub
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings

from spawnmesh_devstack.conformance.mesh import MeshAccess

if TYPE_CHECKING:  # The asyncio types of the stubs exist for type checkers only.
    from spawnmesh.tenancy.v1.tenant_participant_service_pb2_grpc import TenantParticipantServiceAsyncStub

_SECONDS = 60.0


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
