"""Tenant policies as this process knows them."""

from spawnmesh_postgres.database import Database

from spawnmesh_transcript.domain.policy import TranscriptPolicy
from spawnmesh_transcript.store import tenants as tenant_store


class TranscriptPolicyCache:
    """Cache the policies of tenants.

    A cached policy may be out of date: the statement that acts on it compares its version in the
    same transaction.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cached: dict[str, TranscriptPolicy] = {}

    def get(self, tenant_id: str) -> TranscriptPolicy:
        """Return the cached policy, the default one if none is cached."""
        return self._cached.get(tenant_id, TranscriptPolicy())

    async def refresh(self, tenant_id: str) -> TranscriptPolicy:
        """Read the policy from the database, cache and return it."""
        async with self._database.transaction(tenant_id) as connection:
            policy = await tenant_store.read_policy(connection, tenant_id)
        self.put(tenant_id, policy)
        return policy

    def put(self, tenant_id: str, policy: TranscriptPolicy) -> None:
        """Cache the policy. The default policy takes no memory."""
        if policy == TranscriptPolicy():
            self._cached.pop(tenant_id, None)
        else:
            self._cached[tenant_id] = policy
