"""PrepareTenant.

Prepares the tenant: the settings hold from the next append on, at every replica.
"""

from spawnmesh.transcript.v1 import tenant_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.policy import LARGE_PAYLOAD_BYTES, TranscriptPolicy
from spawnmesh_transcript.domain.refusals import being_purged
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.store import purges as purge_store
from spawnmesh_transcript.store import tenants as tenant_store


async def prepare_tenant(
    request: pb.PrepareTenantRequest, caller: Caller, deps: Dependencies
) -> pb.PrepareTenantResponse:
    """Store the tenant's policy, unless a newer one is stored, and return the version that holds.

    Raises CONFLICT while the tenant is being purged. The purge of an earlier tenant with the same
    id counts as finished: the session service creates a tenant anew only once nothing is left of
    the earlier one.
    """
    tenant_id, given = caller.tenant_id, _parse_policy(request)
    async with deps.database.transaction(tenant_id) as connection:
        is_open = await tenant_store.enter_tenant(connection, tenant_id)
        if not is_open and not await purge_store.supersede_purge(
            connection, tenant_id, given.settings_version
        ):
            raise being_purged()
        await tenant_store.put_tenant(connection, tenant_id, given)
        policy = await tenant_store.read_policy(connection, tenant_id)
    deps.policies.put(tenant_id, policy)
    return pb.PrepareTenantResponse(settings_version=policy.settings_version)


def _parse_policy(request: pb.PrepareTenantRequest) -> TranscriptPolicy:
    settings = request.settings
    return TranscriptPolicy(
        request.settings_version,
        settings.mask_secrets,
        settings.stub_large_tool_payloads,
        settings.large_payload_bytes or LARGE_PAYLOAD_BYTES,
        compact_at_percent=settings.compact_at_percent,
        token_vocabulary=Vocabulary(settings.token_vocabulary or Vocabulary.O200K),
    )
