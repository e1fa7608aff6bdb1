"""The types of tools, and the refusal of a path."""

import json
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict
from spawnmesh.session.v1.approval_pb2 import Question
from spawnmesh_materialize import MaterializeError, MaterializeReason

from spawnmesh_runner.clients.peers import Peers
from spawnmesh_runner.domain.tools import ToolRefused


class Arguments(BaseModel):
    """Base of every tool's arguments.

    Unknown arguments are refused, so that a misspelt one is not ignored.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


T = TypeVar("T")
ArgumentsT = TypeVar("ArgumentsT", bound=Arguments)


@dataclass(frozen=True, slots=True)
class TextResult:
    """A result of many lines. The model reads `facts` as one line of JSON, and then `text`.

    The two are stored as blocks of their own, so that the lines of a large text can be counted, and
    read one by one.
    """

    facts: Mapping[str, object]
    text: str


Result = Mapping[str, object] | TextResult


def json_line(value: Mapping[str, object]) -> str:
    """Return one line of JSON in valid UTF-8: a file name in another encoding is escaped."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode("utf-8")


def list_result(facts: Mapping[str, object], items: Iterable[Mapping[str, object]]) -> TextResult:
    """Return a result with one line of JSON for each item."""
    return TextResult(facts, "\n".join(map(json_line, items)))


class CutTurn(Protocol):
    """Does work that an interrupt of the turn cuts short."""

    async def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work returns. Raises TurnInterrupted after an interrupt."""


@dataclass(frozen=True, slots=True)
class CallScope:
    """The state that one call may access.

    `request_id` identifies the call: a repeat after a crash has the same. `answer_entry_id` is the
    entry of the answer that makes the call. The workspace may have `max_workspace_bytes`. `epoch`
    is that of the run's claim. With `had_earlier_runner`, what an earlier runner wrote is not in
    this workspace. If the call `was_begun`, that runner may have made it. `ask` asks a person, and
    raises RunParked. `cut_turn` is for the part of a call that an interrupt may cut short, in a
    tool that is waited for otherwise. The run shares the budgets of `budget_session_ids`;
    `await_budget` gives it up with RunParked until they have room, and returns if they have.
    """

    workspace: Path
    max_workspace_bytes: int
    peers: Peers
    session_id: str
    epoch: int
    had_earlier_runner: bool
    was_begun: bool
    answer_entry_id: str
    request_id: str
    ask: Callable[[Question], Awaitable[NoReturn]]
    cut_turn: CutTurn
    budget_session_ids: Collection[str]
    await_budget: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Tool(Generic[ArgumentsT]):
    """A tool that a model may call.

    If it is `idempotent`, a call with an unknown outcome may be repeated.
    """

    name: str
    description: str
    arguments: type[ArgumentsT]
    execute: Callable[[CallScope, ArgumentsT], Awaitable[Result]]
    idempotent: bool

    def parse(self, arguments: object) -> ArgumentsT:
        """Validate the arguments of a call. Raises pydantic's ValidationError."""
        return self.arguments.model_validate(arguments)


@dataclass(frozen=True, slots=True, eq=False)
class RemoteTool:
    """A tool of a server outside of the mesh.

    `parse` and `execute` raise ToolRefused. `execute` returns the text that the model reads. It
    `is_destructive` unless a trusted server says that it is not.
    """

    name: str
    description: str
    parameters_json: str
    idempotent: bool
    is_destructive: bool
    parse: Callable[[object], dict[str, Any]]
    execute: Callable[[CallScope, dict[str, Any]], Awaitable[str]]


AnyTool = Tool[Any] | RemoteTool


_PATH_ADVICE = {
    MaterializeReason.INVALID_PATH: "give a path relative to the workspace, without '..'",
    MaterializeReason.UNSAFE_PATH: "symbolic and hard links are not followed",
    MaterializeReason.NOT_FOUND: "there is no such file or directory in the workspace",
    MaterializeReason.NOT_A_FILE: "that is not a regular file",
    MaterializeReason.NOT_A_DIRECTORY: "that is not a directory",
    MaterializeReason.DISK_FULL: "the workspace's disk is full",
    MaterializeReason.NO_PERMISSION: "the workspace does not permit it",
}


def refused_path(error: MaterializeError, path: str = "") -> ToolRefused:
    """Return the refusal of a path that the workspace does not open.

    `path` is named in it, for a call with several paths.
    """
    advice = _PATH_ADVICE.get(error.reason, "the file could not be used")
    return ToolRefused(error.reason.value, f"{shown_path(path)}: {advice}" if path else advice)


def shown_path(path: str) -> str:
    """Return the path as JSON in valid UTF-8."""
    return json.dumps(path, ensure_ascii=False).encode("utf-8", "backslashreplace").decode("utf-8")
