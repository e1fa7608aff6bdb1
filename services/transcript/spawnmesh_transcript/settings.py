"""The environment of the transcript service."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict
from spawnmesh_postgres.database_url import DatabaseUrl
from spawnmesh_runtime.settings import CpuWorkerSettings


class TranscriptSettings(CpuWorkerSettings):
    """`TRANSCRIPT_…` variables. Only `migrate` needs `database_owner_url`."""

    model_config = SettingsConfigDict(env_prefix="TRANSCRIPT_")

    database_url: DatabaseUrl
    """URL of PostgreSQL, as the role of the service."""
    database_owner_url: DatabaseUrl = ""
    """URL of PostgreSQL as the owner of the schema. Only `migrate` uses it."""
    database_direct_url: DatabaseUrl = ""
    """For the listeners, if `database_url` leads through a pooler in transaction mode."""
    database_max_connections: int = Field(default=8, ge=1, le=1000)
    """The largest number of connections of the pool."""
    attachment_blob_target: str | None = None
    """`host:port` of the blob store.

    Without it no payload is externalized, whatever the tenant's settings say.
    """
    model_router_target: str | None = None
    """`host:port` of the model router. Without it, or without `hook_target`, nothing is compacted.
    """
    hook_target: str | None = None
    """`host:port` of the hook service. Without it, the publication of summaries waits."""
    session_target: str | None = None
    """`host:port` of the session service, from which this service learns which tokens are revoked.

    Without it, it accepts the tokens of ended runs, and revoked ones, until they expire.
    """
    work_interval_seconds: float = Field(default=60.0, gt=0)
    """Time between two rounds of the worker over all tenants."""
    verified_entries_per_round: int = Field(default=100, ge=0, le=100_000)
    """Entries of each tenant that the worker checks against the hash chain in a round.

    It goes through all transcripts and begins again. 0 turns it off.
    """
