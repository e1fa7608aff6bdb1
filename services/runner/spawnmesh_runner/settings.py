"""What the runner reads from its environment, with the prefix RUNNER_."""

import socket
from pathlib import Path
from uuid import uuid4

from pydantic import Field
from pydantic_settings import SettingsConfigDict
from spawnmesh_runtime.settings import ProcessSettings


def _generated_runner_id() -> str:
    return f"{socket.gethostname()[:64]}-{uuid4().hex[:8]}"


class RunnerSettings(ProcessSettings):
    """A runner's settings. `drain_grace_seconds` is also the time that runs get to finish before they are handed back."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="RUNNER_")

    session_target: str
    transcript_target: str
    model_router_target: str
    attachment_blob_target: str
    hook_target: str
    workspace_root: Path
    """Directory for the runs' workspaces. Several runners on one machine may share it; nothing else may lie in it."""
    max_runs: int = Field(default=8, ge=1, le=64)
    """Runs carried at once."""
    runner_id: str = Field(default_factory=_generated_runner_id, min_length=1, max_length=128)
    heartbeat_share: float = Field(default=1 / 3, gt=0, lt=0.9)
    """Part of a lease between two heartbeats."""
    claim_wait_seconds: float = Field(default=20.0, ge=0, le=60)
    generate_timeout_seconds: float = Field(default=600.0, gt=0)
    """Longest single model call, over all its candidates."""
    mcp_config_file: Path | None = None
    """JSON: the MCP servers that agents may name. Without one there are none."""
