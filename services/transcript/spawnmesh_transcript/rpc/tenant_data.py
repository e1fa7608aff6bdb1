"""The data that this service keeps of tenants, for TenantParticipantService."""

from dataclasses import dataclass

from spawnmesh.tenancy.v1.participant_settings_pb2 import ParticipantSettings
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.tenant_participant import TenantData

from spawnmesh_transcript.domain.policy import LARGE_PAYLOAD_BYTES, TranscriptPolicy
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.operations.policy_cache import TranscriptPolicyCache
from spawnmesh_transcript.store import tenants


@dataclass(frozen=True)
class TranscriptTenants(TenantData):
    """Transcripts with all that belongs to them, activities, and the settings of tenants."""

    policies: TranscriptPolicyCache
    tables = tenants.TENANT_TABLES

    async def put_settings(
        self, connection: Connection, tenant_id: str, settings_version: int, settings: ParticipantSettings
    ) -> None:
        policy = _parse_policy(settings_version, settings.transcripts)
        await tenants.put_tenant(connection, tenant_id, policy)

    async def remember(self, tenant_id: str, settings: ParticipantSettings | None) -> None:
        await self.policies.refresh(tenant_id)


def _parse_policy(settings_version: int, settings: TranscriptSettings) -> TranscriptPolicy:
    return TranscriptPolicy(
        settings_version,
        settings.mask_secrets,
        settings.stub_large_tool_payloads,
        settings.large_payload_bytes or LARGE_PAYLOAD_BYTES,
        compact_at_percent=settings.compact_at_percent,
        token_vocabulary=Vocabulary(settings.token_vocabulary or Vocabulary.O200K),
    )
