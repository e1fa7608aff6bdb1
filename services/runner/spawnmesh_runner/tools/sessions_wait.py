"""The tool `sessions_wait`: wait until children have ended."""

from typing import Annotated

from google.protobuf.duration_pb2 import Duration
from pydantic import Field, StringConstraints
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.session_service_pb2 import WaitSessionRequest, WaitSessionResponse
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.clients.retry import retry_transient
from spawnmesh_runner.tools.calling.tool import Arguments, CallScope, Result, Tool

MAX_WAIT_SECONDS = 600
_SHORTEST_SECONDS = 10.0  # Of each further wait while a child waits for a person or its budget.
_RESPONSE_SECONDS = 10.0

_WAITS_FOR = {
    session_pb2.RUN_STATE_WAITING_APPROVAL: "the decision of a person",
    session_pb2.RUN_STATE_WAITING_BUDGET: "a higher limit of the budget of",
}

NOTE = (
    "Only states are given here: the result of each child that has ended reaches you as a message"
    " before your next turn."
)


class SessionsWait(Arguments):
    session_ids: list[Annotated[str, StringConstraints(pattern="^ses_[0-9a-z]{26}$")]] = Field(
        min_length=1, max_length=64, description="The children's sessions."
    )
    timeout_seconds: float = Field(
        default=60, ge=0, le=MAX_WAIT_SECONDS, description="Longest wait for all of them together."
    )
    wait_for_people: bool = Field(
        default=True,
        description=(
            "A child that waits for a person (WAITING_APPROVAL) or a higher limit of its budget"
            " (WAITING_BUDGET) does not end the wait: its time begins anew until the child goes on."
            " False: it ends."
        ),
    )


async def _execute(scope: CallScope, arguments: SessionsWait) -> Result:
    # Waiting one after another takes as long as waiting for all at once: it ends with the last
    # child.
    end = monotonic_seconds() + arguments.timeout_seconds
    states = [await _wait_one(scope, session_id, end, arguments) for session_id in arguments.session_ids]
    return {"all_done": all(state["done"] for state in states), "sessions": states, "note": NOTE}


async def _wait_one(
    scope: CallScope, session_id: str, end: float, arguments: SessionsWait
) -> dict[str, object]:
    waits_again = arguments.wait_for_people and arguments.timeout_seconds > 0
    again_seconds = max(arguments.timeout_seconds, _SHORTEST_SECONDS)
    try:
        answer = await scope.cut_turn(_wait_until(scope, session_id, end))
        while waits_again and (run := answer.session.latest_run).state in _WAITS_FOR:
            if run.budget_session_id in scope.budget_session_ids:
                # This run shares the budget. Without a runner, its deadline waits too.
                await scope.await_budget()
            again = monotonic_seconds() + again_seconds
            answer = await scope.cut_turn(_wait_until(scope, session_id, again))
    except MeshError as error:
        if error.reason is not Reason.NOT_FOUND:
            raise
        return {"session_id": session_id, "done": True, "state": "NOT_FOUND"}
    run = answer.session.latest_run
    state: dict[str, object] = {
        "session_id": session_id,
        "done": answer.done,
        "state": _name(session_pb2.SessionState.Name(answer.session.state), "SESSION_STATE_"),
        "run_state": _name(session_pb2.RunState.Name(run.state), "RUN_STATE_"),
    }
    if run.state in _WAITS_FOR:
        state["waits_for"] = f"{_WAITS_FOR[run.state]} {run.budget_session_id}".strip()
    return state


async def _wait_until(scope: CallScope, session_id: str, end: float) -> WaitSessionResponse:
    """Return when the child has ended, or at `end`."""
    peers = scope.peers

    async def wait() -> WaitSessionResponse:
        left_seconds = max(0.0, end - monotonic_seconds())
        timeout = Duration()
        timeout.FromMilliseconds(int(left_seconds * 1000))
        request = WaitSessionRequest(session_id=session_id, timeout=timeout)
        return await peers.session.unary(
            peers.sessions.WaitSession, request, timeout_seconds=left_seconds + _RESPONSE_SECONDS
        )

    return await retry_transient(wait)


def _name(value: str, prefix: str) -> str:
    return value.removeprefix(prefix)


SESSIONS_WAIT = Tool(
    name="sessions_wait",
    description=(
        "Waits until the given child sessions have ended, or the time is over, and gives their states. "
        + NOTE
    ),
    arguments=SessionsWait,
    execute=_execute,
    idempotent=True,
)
