"""The settings of the hook service, read from the environment as `HOOK_…`."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict
from spawnmesh_postgres.database_url import DatabaseUrl
from spawnmesh_runtime.settings import CpuWorkerSettings


class HookSettings(CpuWorkerSettings):
    """Settings of the hook service."""

    model_config = SettingsConfigDict(env_prefix="HOOK_", frozen=True, extra="ignore")

    database_url: DatabaseUrl
    """URL of PostgreSQL, as the role of the service."""
    database_owner_url: DatabaseUrl = ""
    """Used by `migrate` only."""
    database_direct_url: DatabaseUrl = ""
    """Used to listen for notifications if `database_url` leads to a pooler in transaction mode."""
    database_max_connections: int = Field(default=8, ge=1, le=1000)
    """The largest number of connections of the pool."""
    session_target: str | None = None
    """`host:port` of the session service, which learns from this service which hooks have plugins.

    This service learns from it which tokens are revoked: without it, it accepts the tokens of ended
    runs, and revoked ones, until they expire. Set it in every mesh: after the first report of
    hooks, the session service calls only the hooks that were enabled.
    """
    allowed_endpoint_hosts: list[str] = Field(default_factory=list)
    """Host patterns (`*.plugins.example.com`), addresses and networks (`10.1.0.0/16`) of plugins
    and webhooks.

    If the list is empty, every public address is allowed.
    """
    allow_private_endpoints: bool = False
    """Allow loopback and private addresses.

    Link-local addresses and metadata servers of clouds have to be listed in
    `allowed_endpoint_hosts`.
    """
    allow_plain_webhooks: bool = False
    """Allow webhooks on loopback without TLS, if private addresses are allowed: for one machine."""
    max_idle_peers: int = Field(default=64, ge=0, le=10_000)
    """Connections to plugins that stay open while no call uses them."""
    webhook_ca_file: Path | None = None
    """Certificate authorities to trust for webhooks and for plugins that are webhooks.

    Those of the system are trusted too.
    """
    bundled_plugins_file: Path | None = None
    """A JSON list of plugins that the operator runs.

    An entry serves all tenants, or those that it names. The service reads it when it starts.
    """
    relay_concurrency: int = Field(default=16, ge=1, le=1000)
    """Deliveries to observers that one worker makes at the same time, and as many webhooks that it
    serves.
    """
    log_retention_days: float = Field(default=30.0, ge=2, le=3650)
    """Days after which deliveries, decisions, published events and messages to webhooks are
    deleted.
    """
