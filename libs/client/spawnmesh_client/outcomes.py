"""The outcome of a run: its result, or the exception that says why there is none."""

from dataclasses import dataclass

from spawnmesh_client.views import Run, RunState, SessionState, Usage


@dataclass(frozen=True, slots=True)
class Result:
    """The answer of a run that succeeded."""

    text: str
    usage: Usage
    run: Run


class RunFailed(Exception):
    """The run ended without an answer. The mesh worked, and no retry of the client helps.

    `reason` is a word for programs, such as `RUN_TIMED_OUT`; `message` is one line for people.
    Operators find the run by `trace_id`. `state` is the state of the run, or that of the session if
    it ended without a run.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        state: RunState | SessionState,
        run_id: str,
        session_id: str,
        trace_id: str,
    ) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message
        self.state = state
        self.run_id = run_id
        self.session_id = session_id
        self.trace_id = trace_id

    def __str__(self) -> str:
        said = f": {self.message}" if self.message else ""
        trace = f"; trace {self.trace_id}" if self.trace_id else ""
        return f"{self.session_id} ended as {self.state} with {self.reason}{said}{trace}"

    def __reduce__(self) -> tuple[object, ...]:
        return _made, (type(self), self.args, self.__dict__)


class RunNotDone(TimeoutError):
    """The run had not ended when the time was over. It goes on in the mesh.

    `approval_id` is set if it waits for a person, and `budget_session_id` if it waits until the
    budget of this session is raised.
    """

    def __init__(
        self,
        session_id: str,
        run_id: str,
        state: RunState | None,
        approval_id: str = "",
        budget_session_id: str = "",
    ) -> None:
        super().__init__(session_id, run_id)
        self.session_id = session_id
        self.run_id = run_id
        self.state = state
        self.approval_id = approval_id
        self.budget_session_id = budget_session_id

    def __str__(self) -> str:
        run = f"{self.run_id} is {self.state}" if self.state else "it has no run yet"
        if self.approval_id:
            run = f"{self.run_id} waits for a person to decide on {self.approval_id}"
        elif self.budget_session_id:
            run = f"{self.run_id} waits until the budget of {self.budget_session_id} is raised"
        return (
            f"{self.session_id} is not done: {run}; it goes on, and"
            f' `(await mesh.session("{self.session_id}")).result()` waits for it again'
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _made, (type(self), self.args, self.__dict__)


def _made(kind: type[Exception], args: tuple[object, ...], state: dict[str, object]) -> Exception:
    """Return the pickled exception."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
