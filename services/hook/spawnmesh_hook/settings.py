"""What the hook service reads from its environment, as `HOOK_…`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict
from spawnmesh_runtime.settings import ProcessSettings


class HookSettings(ProcessSettings):
    """Settings of the hook service."""

    model_config = SettingsConfigDict(env_prefix="HOOK_", frozen=True, extra="ignore")

    database_url: str
    database_owner_url: str = ""
    """For `migrate` alone."""
    database_max_connections: int = Field(default=8, ge=1, le=1000)
    allowed_endpoint_hosts: list[str] = Field(default_factory=list)
    """Host patterns (`*.plugins.example.com`), addresses and networks (`10.1.0.0/16`) that plugins may have; empty means any public one."""
    allow_private_endpoints: bool = False
    """Whether plugins may have loopback and private addresses. Link-local ones they may have only where a network above says so."""
    max_idle_peers: int = Field(default=64, ge=0, le=10_000)
    """Connections to plugins that stay open while nobody uses them."""
