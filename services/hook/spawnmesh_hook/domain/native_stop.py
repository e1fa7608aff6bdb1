"""Stop events of coding harnesses: parse an event, and render the answer to it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spawnmesh_core.json_text import TooManyNodes, require_few_nodes

from spawnmesh_hook.domain.decisions import Decision, FinalizeAnswer

STOPS = frozenset({"Stop", "SubagentStop"})
_MAX_ID_BYTES = 256  # The id is part of an index key.
_MAX_VALUES = 10_000  # Harnesses write some tens.


@dataclass(frozen=True, slots=True)
class NativeStop:
    """A stop event. `turn_id` is empty if the harness names no turn."""

    session_id: str
    turn_id: str
    agent_id: str
    last_message: str


def parse_stop(event_json: str) -> NativeStop | None:
    """Parse an event of a harness. Return None if it is not a stop.

    Raises ValueError with a text that completes "the event ...".
    """
    try:
        require_few_nodes(event_json, _MAX_VALUES)
        event = json.loads(event_json)
    except TooManyNodes:
        raise ValueError(f"has more than {_MAX_VALUES} JSON values") from None
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if not isinstance(event, dict):
        raise ValueError("is not a JSON object")
    name = event.get("hook_event_name")
    if not isinstance(name, str) or not name:
        raise ValueError("has no hook_event_name")
    if name not in STOPS:
        return None
    session_id = _text(event, "session_id")
    if not session_id:
        raise ValueError("has no session_id")
    if len(session_id.encode()) > _MAX_ID_BYTES:
        raise ValueError(f"has a session_id of more than {_MAX_ID_BYTES} bytes")
    turn_id = _text(event, "turn_id") or _text(event, "prompt_id")
    return NativeStop(
        session_id=session_id,
        turn_id=turn_id,
        agent_id=_text(event, "agent_id"),
        last_message=_text(event, "last_assistant_message"),
    )


def run_id_of(harness: str, stop: NativeStop) -> str:
    """Return the run id under which the revisions of a native turn are counted.

    The event's `stop_hook_active` does not count, since a harness may never set it.
    """
    parts = json.dumps([harness, stop.session_id, stop.turn_id, stop.agent_id])
    return f"native_{hashlib.sha256(parts.encode()).hexdigest()[:32]}"


def render_answer(decision: Decision) -> str:
    """Return the output for the harness: a block, a stop, or nothing for a continue."""
    if decision.answer is FinalizeAnswer.REVISE:
        return json.dumps({"decision": "block", "reason": decision.reason})
    if decision.answer is FinalizeAnswer.FINALIZE:
        answer: dict[str, Any] = {"continue": False}
        if decision.reason.strip():
            answer["stopReason"] = decision.reason
        return json.dumps(answer)
    return ""


def _text(event: Mapping[str, Any], name: str) -> str:
    value = event.get(name)
    # A lone surrogate and NUL are legal in JSON, but not in a proto string or in PostgreSQL.
    return value.encode("utf-8", "replace").decode().replace("\0", "") if isinstance(value, str) else ""
