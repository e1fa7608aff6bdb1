"""What the model router reads from its environment, as `MODEL_ROUTER_…`; provider keys aside, which the configuration refers to."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict
from spawnmesh_postgres.database_url import DatabaseUrl
from spawnmesh_runtime.settings import ProcessSettings


class ModelRouterSettings(ProcessSettings):
    """Settings of the model router."""

    model_config = SettingsConfigDict(env_prefix="MODEL_ROUTER_", frozen=True, extra="ignore", protected_namespaces=())

    database_url: DatabaseUrl
    database_owner_url: DatabaseUrl = ""
    """For `migrate` alone."""
    database_direct_url: DatabaseUrl = ""
    """For what listens for notifications, where `database_url` leads through a pooler in transaction mode."""
    database_max_connections: int = Field(default=4, ge=1, le=1000)
    config_file: Path
    """JSON: the providers, their models, the primary and the aliases."""
    attempt_timeout_seconds: float = Field(default=120.0, gt=0)
    """Until a provider begins to answer, and from then until the first event of its answer."""
    idle_timeout_seconds: float = Field(default=60.0, gt=0)
    """Between two events of an answer, pings among them."""
    connect_timeout_seconds: float = Field(default=5.0, gt=0)
    tries_before_failover: int = Field(default=2, ge=1, le=10)
    """Tries of a candidate in all, while another one of the chain could take over."""
    tries_at_last_candidate: int = Field(default=8, ge=1, le=10)
    """Tries in all of a candidate that no other one could take over from."""
