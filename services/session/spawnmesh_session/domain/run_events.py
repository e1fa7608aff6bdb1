"""Events of a run that its runner or a plugin caused, in one line for people each."""

from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh_session.domain.runs import UngrantedRevision
from spawnmesh_session.domain.sessions import EventKind

MAX_EVENTS = 1000
"""The most events of a run that its runners report."""
_MAX_NAMES = 8


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event of a run. `detail` has no content and no text that a plugin wrote."""

    kind: EventKind
    detail: str


def model_failed(model: str, reason: str, http_status: int) -> RunEvent:
    """Return the failure of a model. `http_status` is 0 if there was none."""
    status = f" (HTTP {http_status})" if http_status else ""
    return RunEvent(EventKind.MODEL_FAILED, f"{model}: {reason}{status}")


def model_chosen(plugins: Sequence[str], model: str) -> RunEvent:
    """Return that plugins chose another model."""
    return _decided("before_model_resolve", plugins, f"chose the model {model}")


def prompt_changed(
    plugins: Sequence[str], *, system_prompt_replaced: bool, context_added: bool, removed_tool_count: int
) -> RunEvent:
    """Return that plugins changed a prompt. At least one part has changed."""
    tools = "a tool" if removed_tool_count == 1 else f"{removed_tool_count} tools"
    parts = [
        *(["replaced the system prompt"] if system_prompt_replaced else []),
        *(["added context"] if context_added else []),
        *([f"took {tools} away"] if removed_tool_count else []),
    ]
    changes = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    return _decided("before_prompt_build", plugins, changes)


def call_blocked(plugins: Sequence[str], tool_name: str) -> RunEvent:
    """Return that plugins blocked a call of a tool."""
    return _decided("before_tool_call", plugins, f"blocked the call of {tool_name}")


def call_rewritten(plugins: Sequence[str], tool_name: str) -> RunEvent:
    """Return that plugins gave a call of a tool other arguments."""
    return _decided("before_tool_call", plugins, f"rewrote the arguments of {tool_name}")


def approval_required(plugins: Sequence[str], tool_name: str) -> RunEvent:
    """Return that plugins let a person approve a call of a tool."""
    return _decided("before_tool_call", plugins, f"required an approval of the call of {tool_name}")


def answer_finalized(plugins: Sequence[str]) -> RunEvent:
    """Return that plugins made a draft the answer, against plugins of lower priority."""
    return _decided("before_agent_finalize", plugins, "declared the answer final")


def revision_requested(plugins: Sequence[str], number: int, max_revision_count: int) -> RunEvent:
    """Return that plugins sent a draft back."""
    detail = f"revision {number} of {max_revision_count}, requested by {_names(plugins)}"
    return RunEvent(EventKind.REVISION, detail)


def revisions_capped(revisions: Sequence[UngrantedRevision]) -> RunEvent:
    """Return that plugins wanted a revision of the answer, with the bounds that were hit."""
    wanted = ", ".join(f"{capped.plugin} ({capped.cap})" for capped in revisions)
    return RunEvent(EventKind.REVISION_CAPPED, f"delivered although a revision was requested by {wanted}")


def unknown_events(
    events: Sequence[RunEvent], first_number: int, known_count: int
) -> tuple[Sequence[RunEvent], int]:
    """Return the reported events that are new, and the number of events that are known then.

    The events are numbered from `first_number` on. Those up to `known_count` are known.
    """
    count = max(known_count, first_number + len(events) - 1)
    fresh = events[max(0, known_count + 1 - first_number) :]
    return fresh[: max(0, MAX_EVENTS - known_count)], count


def _decided(hook: str, plugins: Sequence[str], decision: str) -> RunEvent:
    return RunEvent(EventKind.HOOK_DECIDED, f"{hook}: {_names(plugins)} {decision}")


def _names(plugins: Sequence[str]) -> str:
    """Return the names in one line, of which many are counted."""
    others = len(plugins) - _MAX_NAMES
    return ", ".join(plugins[:_MAX_NAMES]) + (f" and {others} more" if others > 0 else "")
