"""The states of sessions and runs as they are shown: a word, and an icon whose shape tells it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShownState:
    """A state in words. `icon` names a shape and a colour; `is_live` means that it will change."""

    word: str
    icon: str
    is_live: bool = False


_OF_RUNS = {
    "QUEUED": ShownState("queued", "queued", is_live=True),
    "RUNNING": ShownState("running", "running", is_live=True),
    "FINALIZING": ShownState("finalizing", "running", is_live=True),
    "WAITING_APPROVAL": ShownState("waits for a person", "waiting", is_live=True),
    "WAITING_BUDGET": ShownState("waits for its budget", "budget", is_live=True),
    "SUCCEEDED": ShownState("succeeded", "succeeded"),
    "FAILED": ShownState("failed", "failed"),
    "TIMED_OUT": ShownState("timed out", "failed"),
    "KILLED": ShownState("killed", "stopped"),
    "INTERRUPTED": ShownState("interrupted", "stopped"),
}
_OF_SESSIONS = {
    "PROVISIONING": ShownState("being spawned", "queued", is_live=True),
    "ACTIVE": ShownState("open", "open", is_live=True),
    "CLOSED": ShownState("closed", "closed"),
    "SPAWN_FAILED": ShownState("spawn failed", "failed"),
}
_UNKNOWN = ShownState("unknown", "closed")


def run_state(state: str) -> ShownState:
    """Return how the state of a run, such as `RUNNING`, is shown."""
    return _OF_RUNS.get(state, _UNKNOWN)


def session_state(state: str, newest_run_state: str) -> ShownState:
    """Return how a session is shown: by its newest run, if it has one."""
    if newest_run_state and state != "SPAWN_FAILED":
        return run_state(newest_run_state)
    return _OF_SESSIONS.get(state, _UNKNOWN)
