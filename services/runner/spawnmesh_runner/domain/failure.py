"""The failure of a run and its delay: the reason and the message that its session stores."""

from collections.abc import Iterable
from dataclasses import dataclass

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_materialize.errors import MaterializeError, MaterializeReason

from spawnmesh_runner.domain.reasons import may_succeed_later
from spawnmesh_runner.domain.turns import NoProgress, OutputLimitReached, TurnLimitExceeded

_MAX_MESSAGE_CHARACTERS = 1000
_LAST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a run that has no answer."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Delay:
    """The reason for which a run cannot go on now, and the shortest pause before the next try."""

    reason: Reason
    message: str
    min_pause_seconds: float


class ModelCallTimedOut(Exception):
    """A model had all the time of a call for its answer. Another call would take as long, so the
    run fails.
    """

    def __init__(self, error: MeshError) -> None:
        super().__init__(str(error))
        self.error = error


class McpServerNotOffered(Exception):
    """The agent names MCP servers that this runner does not offer to the tenant, or does not
    have.

    The text does not say which of the two it is.
    """

    def __init__(self, names: Iterable[str]) -> None:
        listed = ", ".join(names)
        super().__init__(f"no runner offers this tenant the MCP servers that its agent names: {listed}")


class McpSandboxUnavailable(Exception):
    """The agent names MCP servers that are commands, and this runner cannot confine them."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(
            f"these MCP servers of the agent are refused, because the runner has no sandbox for them:"
            f" {', '.join(names)}; the runner's log says why, and its operator can make one possible,"
            f" give the servers an address, or set RUNNER_UNSANDBOXED_STDIO_SERVERS"
        )


def describe_failure(error: Exception) -> Failure:
    """Describe the error to readers of the run.

    The description holds the mesh's own reasons and texts, and no text of another error.
    """
    if isinstance(error, ModelCallTimedOut):
        return describe_failure(error.error)
    if isinstance(error, MeshError):
        return Failure(error.reason, _one_line(error))
    if isinstance(error, TurnLimitExceeded):
        return Failure(Reason.TURN_LIMIT_EXCEEDED, str(error))
    if isinstance(error, OutputLimitReached):
        return Failure(Reason.OUTPUT_LIMIT_REACHED, str(error)[:_MAX_MESSAGE_CHARACTERS])
    if isinstance(error, NoProgress):
        return Failure(Reason.NO_PROGRESS, str(error)[:_MAX_MESSAGE_CHARACTERS])
    if isinstance(error, McpServerNotOffered):
        return Failure(Reason.MCP_SERVER_NOT_OFFERED, str(error))
    if isinstance(error, McpSandboxUnavailable):
        return Failure(Reason.MCP_SANDBOX_UNAVAILABLE, str(error))
    return Failure(Reason.RUNNER_ERROR, "the runner failed; its log has the error under this run's trace")


def find_delay(error: Exception, seconds_left: float) -> Delay | None:
    """Return the delay if the run may succeed later, else None.

    It may if the error is transient, or if only the disk of this runner is full. A pause that would
    end after the run's deadline, which is `seconds_left` away, is half of that time: the dependency
    may be there earlier than it says. In the last ten seconds there is no delay.
    """
    if is_disk_full(error):
        message = "the disk of the runner is full; another runner takes the run"
        return Delay(Reason.RUNNER_DISK_FULL, message, 0.0)
    if not isinstance(error, MeshError) or not may_succeed_later(error):
        return None
    pause = error.retry_after_seconds or 0.0
    if pause >= seconds_left:
        if seconds_left < _LAST_SECONDS:
            return None
        pause = seconds_left / 2
    return Delay(error.reason, _one_line(error), pause)


def is_disk_full(error: Exception) -> bool:
    """Return whether the disk of the workspaces has no room. Another runner may have some."""
    return isinstance(error, MaterializeError) and error.reason is MaterializeReason.DISK_FULL


def _one_line(error: MeshError) -> str:
    return " ".join(error.message.split())[:_MAX_MESSAGE_CHARACTERS]
