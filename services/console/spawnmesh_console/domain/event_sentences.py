"""Events of a session in sentences."""

from dataclasses import dataclass
from datetime import datetime

from spawnmesh_console.domain.states import ShownState, run_state

_UNKNOWN = ShownState("", "closed")
_SPAWNED = ShownState("spawned", "queued")
_PUBLISHED = ShownState("published", "published")
_BUDGET = ShownState("changed", "budget")
_FAILED = ShownState("the spawn failed", "failed")


@dataclass(frozen=True, slots=True)
class EventSentence:
    """An event: its sentence, what a person reads beside it, and the child or the set of published
    files that it is about.
    """

    number: int
    time: datetime | None
    state: ShownState
    sentence: str
    detail: str
    child_session_id: str
    set_id: str


def event_sentence(
    number: int,
    time: datetime | None,
    kind: str,
    state: str,
    detail: str,
    child_session_id: str,
    set_id: str,
) -> EventSentence:
    """Return the event in a sentence. `kind` and `state` are words of the contract."""
    match kind:
        case "PROVISIONING":
            shown, sentence = _SPAWNED, "The spawn was requested."
        case "RUN":
            shown = run_state(state)
            sentence = f"The run {_VERBS.get(state, 'changed')}."
        case "REVISION":
            shown, sentence = _UNKNOWN, "A plugin asked for another draft."
        case "REVISION_CAPPED":
            shown, sentence = _UNKNOWN, "A plugin asked for another draft, and none was left to give."
        case "CHILD_SPAWNED":
            shown, sentence = _SPAWNED, "A child was spawned."
        case "CHILD_ANNOUNCED":
            shown, sentence = run_state(state), "A child reported its result."
        case "MODEL_FAILED":
            shown, sentence = _UNKNOWN, "A model failed."
        case "HOOK_DECIDED":
            shown, sentence = _UNKNOWN, "A plugin decided about the run."
        case "FILES_PUBLISHED":
            shown, sentence = _PUBLISHED, "The run published files."
        case "BUDGET_CHANGED":
            shown, sentence = _BUDGET, "The limits of the budget were changed."
        case "SPAWN_FAILED":
            shown, sentence = _FAILED, "The spawn failed."
        case "CLOSED":
            shown, sentence = _UNKNOWN, "The session closed."
        case _:
            shown, sentence = _UNKNOWN, "Something of a newer version of the mesh happened."
    return EventSentence(number, time, shown, sentence, detail, child_session_id, set_id)


_VERBS = {
    "QUEUED": "waits for a runner",
    "RUNNING": "was taken by a runner",
    "FINALIZING": "has an answer, which is being finalized",
    "WAITING_APPROVAL": "waits for a person",
    "WAITING_BUDGET": "waits for its budget",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "TIMED_OUT": "timed out",
    "KILLED": "was killed",
    "INTERRUPTED": "was interrupted",
}
