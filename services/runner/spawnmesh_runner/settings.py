"""Settings that the runner reads from its environment, with the prefix RUNNER_."""

import socket
from pathlib import Path
from typing import Self
from uuid import uuid4

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict
from spawnmesh_runtime.settings import ProcessSettings

_LEAST_RUNS_TO_RESERVE = 4


def _generated_runner_id() -> str:
    return f"{socket.gethostname()[:64]}-{uuid4().hex[:8]}"


class RunnerSettings(ProcessSettings):
    """A runner's settings.

    Runs get `drain_grace_seconds` to finish before they are released to the queue.
    """

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="RUNNER_")

    session_target: str
    """`host:port` of the session service."""
    transcript_target: str
    """`host:port` of the transcript service."""
    model_router_target: str
    """`host:port` of the model router."""
    attachment_blob_target: str
    """`host:port` of the attachment-blob service."""
    hook_target: str
    """`host:port` of the hook service."""
    workspace_root: Path
    """Directory of the runs' workspaces.

    Runners on one machine may share it. Nothing else may be in it.
    """
    min_free_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    """No run is claimed while the disk of the workspaces has less free space than this."""
    max_runs: int = Field(default=8, ge=1, le=64)
    """The number of runs that this process executes at once."""
    reserved_runs: int | None = Field(default=None, ge=0, le=63)
    """Of `max_runs`, the number kept free for tenants that have no running run.

    By default 1, and 0 if `max_runs` is less than 4. A single busy tenant cannot use them.
    """
    runner_id: str = Field(default_factory=_generated_runner_id, min_length=1, max_length=128)
    """The name of this runner in claims and logs. The default is made of the host's name and a
    random part.
    """
    heartbeat_share: float = Field(default=1 / 3, gt=0, lt=0.9)
    """The pause between two heartbeats, as a share of the lease."""
    claim_wait_seconds: float = Field(default=20.0, ge=0, le=60)
    """Time that one call for runs waits for the next one."""
    generate_timeout_seconds: float = Field(default=600.0, gt=0)
    """Timeout of a single model call, over all its candidates."""
    mcp_config_file: Path | None = None
    """JSON file with the MCP servers that agents may name. Without a file there are none."""
    unsandboxed_stdio_servers: bool = False
    """Start MCP servers that are commands without a sandbox.

    Then they can read the runner's key, its memory and the workspaces of all runs.
    """
    mcp_cgroup: Path | None = None
    """Directory of a cgroup (version 2) that is delegated to the runner, with no process in it.

    Each MCP server that is a command gets a cgroup below it, by which the kernel bounds the memory
    and the number of all its processes.
    """
    max_workspace_bytes: int = Field(default=192 * 1024 * 1024, ge=1024 * 1024)
    """The bytes that the workspace of one run may have.

    MCP servers that are commands are ended above it, `write_file` is refused what would not fit,
    and a run whose attachments take more than half of it fails: they are written twice.
    """
    trace_content_max_bytes: int = Field(default=0, ge=0, le=1024 * 1024)
    """The bound of the arguments and of the result of a tool call in its span, in bytes of each
    attribute. A quarter of it is kept, as of each text of a model call.

    0 records none. Otherwise the runs of the tenants that have `routing.trace_content` have them in
    the trace, with secrets masked and without the files of spawns.
    """

    @model_validator(mode="after")
    def _leaves_places(self) -> Self:
        if self.reserved_runs is not None and self.reserved_runs >= self.max_runs:
            raise ValueError("reserved_runs must be less than max_runs")
        return self

    @property
    def reserved_run_count(self) -> int:
        """The number of places kept free for tenants that have no running run."""
        if self.reserved_runs is not None:
            return self.reserved_runs
        return 1 if self.max_runs >= _LEAST_RUNS_TO_RESERVE else 0
