"""What a tool is, and how it says no."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict
from spawnmesh_materialize import MaterializeError, MaterializeReason

from spawnmesh_runner.mesh import Mesh


class Arguments(BaseModel):
    """Base of every tool's arguments: unknown ones are refused, so that a misspelt option is not silently ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


ArgumentsT = TypeVar("ArgumentsT", bound=Arguments)
Result = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Scope:
    """What one call may touch. `request_id` names this very call for good: a repeat after a crash has the same.

    `answer_entry_id` is the entry of the answer that makes the call.
    """

    workspace: Path
    mesh: Mesh
    session_id: str
    answer_entry_id: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Tool(Generic[ArgumentsT]):
    """A tool a model may call. `idempotent`: a call whose outcome nobody knows may be made again."""

    name: str
    description: str
    arguments: type[ArgumentsT]
    run: Callable[[Scope, ArgumentsT], Awaitable[Result]]
    idempotent: bool

    def parse(self, arguments: object) -> ArgumentsT:
        """The arguments of a call. Raises pydantic's ValidationError."""
        return self.arguments.model_validate(arguments)


@dataclass(frozen=True, slots=True, eq=False)
class RemoteTool:
    """A tool of a server that is none of the mesh's. `parse` raises ToolRefused, as `run` does; `run` gives the text that the model reads."""

    name: str
    description: str
    parameters_json: str
    idempotent: bool
    parse: Callable[[object], dict[str, Any]]
    run: Callable[[Scope, dict[str, Any]], Awaitable[str]]


AnyTool = Tool[Any] | RemoteTool


MCP_PREFIX = "mcp__"
"""What the names of all servers' tools begin with, and of none that is built in."""


def mcp_prefix(server: str) -> str:
    """What the names of a server's tools begin with. Servers' names have no `__`, so no two give a tool the same name."""
    return f"{MCP_PREFIX}{server}__"


class ToolRefused(Exception):
    """A call that cannot be done; the model reads reason and message, so neither names a path of the host."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


_PATH_ADVICE = {
    MaterializeReason.INVALID_PATH: "give a path relative to the workspace, without '..'",
    MaterializeReason.UNSAFE_PATH: "symbolic and hard links are not followed",
    MaterializeReason.NOT_FOUND: "there is no such file or directory in the workspace",
    MaterializeReason.NOT_A_FILE: "that is not a regular file",
    MaterializeReason.NOT_A_DIRECTORY: "that is not a directory",
    MaterializeReason.DISK_FULL: "the workspace's disk is full",
    MaterializeReason.NO_PERMISSION: "the workspace does not permit it",
}


def refused_path(error: MaterializeError) -> ToolRefused:
    """The refusal for a path that the workspace does not give out."""
    return ToolRefused(error.reason.value, _PATH_ADVICE.get(error.reason, "the file could not be used"))
