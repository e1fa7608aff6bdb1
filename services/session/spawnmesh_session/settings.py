"""The settings of the session service. No other module reads its environment."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict
from spawnmesh_postgres.database_url import DatabaseUrl
from spawnmesh_runtime.settings import CpuWorkerSettings

from spawnmesh_session.domain.call_limits_ceiling import CallLimitsCeiling
from spawnmesh_session.domain.tenant_classes import TenantClasses


class SessionSettings(CpuWorkerSettings):
    """Settings from environment variables with the prefix `SESSION_`."""

    model_config = SettingsConfigDict(env_prefix="SESSION_")

    database_url: DatabaseUrl
    """URL of PostgreSQL, as the role of the service."""
    database_owner_url: DatabaseUrl = ""
    """URL of PostgreSQL as the owner of the schema. Only `migrate` uses it."""
    database_direct_url: DatabaseUrl = ""
    """The URL for notifications, if `database_url` uses a pooler in transaction mode."""
    database_max_connections: int = Field(default=8, ge=1, le=1000)
    """The largest number of connections of the pool."""
    attachment_blob_target: str
    """`host:port` of the attachment-blob service."""
    transcript_target: str
    """`host:port` of the transcript service."""
    hook_target: str
    """`host:port` of the hook service."""
    model_router_target: str
    """`host:port` of the model router."""
    call_limits_ceiling: CallLimitsCeiling = CallLimitsCeiling()
    """The largest limits that the settings of a tenant may have. The defaults of tenants without
    limits of their own, `call_limits`, are the operator's already, and have none.
    """
    tenant_classes: TenantClasses = ("free", "standard", "premium", "internal")
    """The names that the setting `tenant_class` of a tenant may have, 8 at most.

    A tenant keeps a class that is removed here until its class is changed.
    """
    lease_ttl_seconds: float = Field(default=10.0, gt=0)
    """Time after its last heartbeat until a runner has lost its run."""
    max_run_attempts: int = Field(default=5, gt=0)
    """Claims of a run, after which it fails."""
    spawn_deadline_seconds: float = Field(default=60.0, gt=0)
    """Time after which a spawn that is not accepted yet is undone."""
    max_spawns_without_caller: int = Field(default=100, ge=0)
    """Spawns that go on at once on this replica although their callers went away.

    If there are more, a spawn whose caller goes away is cut off and undone.
    """
    step_timeout_seconds: float = Field(default=15.0, gt=0)
    """Time for one call of a spawn to another service."""
    fork_token_count: int = Field(default=20_000, gt=0)
    """The most tokens of another session that a session with the context FORK begins with."""
    worker_concurrency: int = Field(default=8, gt=0)
    """Jobs of each kind that a worker runs at the same time."""
    sweep_interval_seconds: float = Field(default=1.0, gt=0)
    """Time between two searches for runs of lost runners, and for deadlines that are over."""
    retention_interval_seconds: float = Field(default=300.0, gt=0)
    """Time between two passes of a tenant's retention."""
