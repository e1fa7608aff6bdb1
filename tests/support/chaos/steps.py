"""The steps of both sagas, in order: what each does, and therefore where it can be cut off.

A path is what one call does. A test drives each path and compares it with its table; another looks
through the sagas' source for transactions and calls that no table names. Failpoints themselves
need no list: they are around the seams.
"""

from dataclasses import dataclass

from tests.support.chaos.failpoints import IN_CALL, IN_TRANSACTION


@dataclass(frozen=True, slots=True)
class Transaction:
    """Of the function of this name, in a saga or in a store."""

    name: str

    @property
    def steps(self) -> list[str]:
        return [f"{self.name}: {part}" for part in IN_TRANSACTION]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a client's method."""

    name: str

    @property
    def steps(self) -> list[str]:
        return [f"{self.name}: {part}" for part in IN_CALL]


class Beside(tuple[Transaction | Call, ...]):
    """Parallel work: each item in its own order, no order among them."""

    @property
    def steps(self) -> list[str]:
        return [step for act in self for step in act.steps]


Path = tuple[Transaction | Call | Beside, ...]

SPAWNED: Path = (  # By a run.
    Transaction(
        "SpawnSaga._begin"
    ),  # Limits are checked; the session is PROVISIONING, with a deadline in the queue.
    Call("Hooks.before_spawn"),
    Beside(
        (
            Call("AttachmentSets.stage"),
            Call("Transcripts.create"),
            Transaction("pass_gate"),  # From here on a failure is published.
        )
    ),
    Call("AttachmentSets.attach"),
    Call("Transcripts.append"),  # The note about the files, and the task.
    Transaction("activate_session"),  # ACTIVE, with a run in the queue.
)

SPAWNED_BY_A_CLIENT: Path = (Transaction("begin_spawn"), *SPAWNED[1:])
"""Nothing of a parent is to be judged."""

UNDONE: Path = (  # The files are refused.
    *SPAWNED[:3],
    Transaction("SpawnUndo._fail"),  # SPAWN_FAILED, with its event.
    Call("AttachmentSets.release"),
    Call("Transcripts.delete"),
    Transaction("SpawnUndo._forget"),  # The entry leaves the queue.
)

SPAWNED_BEFORE: Path = (
    Transaction("SpawnSaga._begin"),
    Transaction("SpawnRepeat.find"),
    Transaction("SpawnRepeat._get"),
    Transaction("get_session"),
)

ACCEPTED: Path = (
    Transaction("FinalizeSaga._begin_or_decide"),  # FINALIZING.
    Call("Hooks.before_finalize"),
    Transaction("decide_run"),  # No message is put before the draft any more.
    Call("Transcripts.append"),  # The label that says it is final.
    Transaction("FinalizeSaga._commit"),  # SUCCEEDED, announced, with its jobs.
)

UNJUDGED: Path = (*ACCEPTED[:1], *ACCEPTED[3:])
"""No plugin judges the draft, so it is decided as it begins."""

REVISED: Path = (
    *ACCEPTED[:2],
    Transaction("get_finalizing"),  # The run was not interrupted meanwhile.
    Call("Transcripts.append"),  # The draft is superseded, and why.
    Transaction("FinalizeSaga._revise"),  # RUNNING again.
)

UNASKED: Path = (*ACCEPTED[:2], Transaction("FinalizeSaga._resume"))  # A plugin failed.

# An earlier runner's draft was being made the answer, and this one has another.
WITHDRAWN: Path = (
    Transaction("FinalizeSaga._begin_or_decide"),
    Transaction("get_finalizing"),
    Transaction("FinalizeSaga._withdraw"),
    # The earlier draft is superseded, whether or not it was called final.
    Call("Transcripts.append"),
    Transaction("FinalizeSaga._withdraw_decision"),
    Transaction("FinalizeSaga._begin_or_decide (2)"),
    Call("Hooks.before_finalize"),
    Transaction("decide_run"),
    Call("Transcripts.append (2)"),
    Transaction("FinalizeSaga._commit"),
)

ABSENT: Path = (  # The draft is not in the transcript.
    *ACCEPTED[:4],
    Transaction("FinalizeSaga._withdraw_decision"),  # RUNNING again; another draft may be offered.
)

PATHS: dict[str, Path] = {
    "SPAWNED": SPAWNED,
    "SPAWNED_BY_A_CLIENT": SPAWNED_BY_A_CLIENT,
    "UNDONE": UNDONE,
    "SPAWNED_BEFORE": SPAWNED_BEFORE,
    "ACCEPTED": ACCEPTED,
    "UNJUDGED": UNJUDGED,
    "REVISED": REVISED,
    "UNASKED": UNASKED,
    "WITHDRAWN": WITHDRAWN,
    "ABSENT": ABSENT,
}

BEHIND_FAULTS = {
    "FinalizeSaga._append": "asks whether the lease was lost with the transcript's claim",
    "FinalizeSaga._decide": "makes the run RUNNING again for a message that arrived meanwhile",
}
"""Transactions that no path has, and why."""


def steps_of(path: Path) -> list[str]:
    """Every step at which the path can be cut off."""
    return [step for act in path for step in act.steps]


def states_of(path: Path) -> list[str]:
    """The steps at which a kill or a pause finds another state.

    A process that is killed or paused before a transaction or a call has done the same as behind
    the one before. Beside others, it has not: the calls of the others are in flight.
    """
    return [
        step
        for number, act in enumerate(path)
        for step in act.steps
        if not number or isinstance(act, Beside) or not step.endswith((": begin", ": call"))
    ]


def difference(path: Path, reached: list[str]) -> str:
    """Return an empty string for the path; else the missing, unexpected or misplaced steps."""
    expected = steps_of(path)
    if missing := [step for step in expected if step not in reached]:
        return f"not reached: {missing}"
    if unexpected := [step for step in reached if step not in expected]:
        return f"in no table: {unexpected}"
    at = 0
    for act in path:
        part = reached[at : at + len(act.steps)]
        at += len(part)
        for one in act if isinstance(act, Beside) else (act,):
            if [step for step in part if step in one.steps] != one.steps:
                return f"out of order: {part} where {act} is due"
    return "" if at == len(reached) else f"reached again: {reached[at:]}"
