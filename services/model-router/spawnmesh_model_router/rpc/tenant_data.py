"""The data that this service keeps of tenants, for TenantParticipantService."""

from dataclasses import dataclass

from spawnmesh.model_router.v1 import routing_pb2
from spawnmesh.tenancy.v1.participant_settings_pb2 import ParticipantSettings
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.tenant_participant import TenantData

from spawnmesh_model_router.domain.images import BlindModelPolicy
from spawnmesh_model_router.domain.policy import Limits, TenantPolicy
from spawnmesh_model_router.operations.cooldown_cache import CooldownCache
from spawnmesh_model_router.operations.policy_cache import PolicyCache
from spawnmesh_model_router.operations.usage_log import UsageLog
from spawnmesh_model_router.store import policies
from spawnmesh_model_router.store.cooldowns import notify_cooldowns


@dataclass(frozen=True)
class RouterTenants(TenantData):
    """Policies of tenants, their budgets, spending and failed calls, and their own cooldowns."""

    cache: PolicyCache
    cooldowns: CooldownCache
    usage: UsageLog
    tables = policies.TENANT_TABLES

    async def put_settings(
        self, connection: Connection, tenant_id: str, settings_version: int, settings: ParticipantSettings
    ) -> None:
        await policies.put_policy(connection, tenant_id, settings_version, _parse_policy(settings))

    async def remember(self, tenant_id: str, settings: ParticipantSettings | None) -> None:
        self.cache.invalidate()
        if settings is not None:
            self.cache.learn(tenant_id, _parse_policy(settings))

    async def announce_purge(self, connection: Connection) -> None:
        await policies.notify_policies(connection)
        await notify_cooldowns(connection)

    def forget(self, tenant_id: str) -> None:
        self.cache.evict(tenant_id)
        self.cooldowns.evict(tenant_id)
        self.usage.forget(tenant_id)


def _parse_policy(settings: ParticipantSettings) -> TenantPolicy:
    policy = settings.routing
    name = routing_pb2.BlindModelPolicy.Name(policy.blind_model_policy).removeprefix("BLIND_MODEL_POLICY_")
    return TenantPolicy(
        blind_model_policy=BlindModelPolicy(name) if name in BlindModelPolicy.__members__ else None,
        stop_after_side_effects=policy.stop_after_side_effects,
        max_tries=policy.max_try_count,
        limits=Limits(
            policy.max_requests_per_minute, policy.max_tokens_per_minute, policy.max_spend_micros_per_day
        ),
        trace_content=policy.trace_content,
        tenant_class=settings.tenant_class,
    )
