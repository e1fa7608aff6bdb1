"""What the hook service reads from its environment, as `HOOK_…`."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict
from spawnmesh_postgres.database_url import DatabaseUrl
from spawnmesh_runtime.settings import ProcessSettings


class HookSettings(ProcessSettings):
    """Settings of the hook service."""

    model_config = SettingsConfigDict(env_prefix="HOOK_", frozen=True, extra="ignore")

    database_url: DatabaseUrl
    database_owner_url: DatabaseUrl = ""
    """For `migrate` alone."""
    database_direct_url: DatabaseUrl = ""
    """For what listens for notifications, where `database_url` leads through a pooler in transaction mode."""
    database_max_connections: int = Field(default=8, ge=1, le=1000)
    allowed_endpoint_hosts: list[str] = Field(default_factory=list)
    """Host patterns (`*.plugins.example.com`), addresses and networks (`10.1.0.0/16`) that plugins may have; empty means any public one."""
    allow_private_endpoints: bool = False
    """Whether plugins may have loopback and private addresses. Link-local ones and clouds' metadata servers need a network above."""
    max_idle_peers: int = Field(default=64, ge=0, le=10_000)
    """Connections to plugins that stay open while nobody uses them."""
    webhook_ca_file: Path | None = None
    """Certificates of authorities, beside the system's own, that webhooks may be vouched for by."""
    bundled_plugins_file: Path | None = None
    """A JSON list of plugins that the operator runs for all tenants, or for those it names; read at the start."""
    telling_concurrency: int = Field(default=16, ge=1, le=1000)
    """Observers that one worker tells at a time."""
    log_retention_days: float = Field(default=30.0, ge=1, le=3650)
    """How long deliveries, decisions and published events are kept."""
