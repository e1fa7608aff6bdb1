"""What the transcript service reads from its environment."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict
from spawnmesh_postgres.database_url import DatabaseUrl
from spawnmesh_runtime.settings import ProcessSettings


class TranscriptSettings(ProcessSettings):
    """`TRANSCRIPT_…` variables. `database_owner_url` is needed by `migrate` alone."""

    model_config = SettingsConfigDict(env_prefix="TRANSCRIPT_")

    database_url: DatabaseUrl
    database_owner_url: DatabaseUrl = ""
    database_direct_url: DatabaseUrl = ""
    """For what listens for notifications, where `database_url` leads through a pooler in transaction mode."""
    database_max_connections: int = Field(default=8, ge=1, le=1000)
    attachment_blob_target: str | None = None
    """`host:port` of the blob store. Without it no result of a tool is kept there, whatever tenants have set."""
    model_router_target: str | None = None
    """`host:port` of what asks models for summaries. Without it, or without `hook_target`, nothing is compacted."""
    hook_target: str | None = None
    work_interval_seconds: float = Field(default=60.0, gt=0)
    """How often the worker looks after each tenant's transcripts."""
    cool_delay_seconds: float = Field(default=300.0, ge=0)
    """How long a worker that was started drops no inline copies: replicas of a version that could not read such entries are gone by then."""
