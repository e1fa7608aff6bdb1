"""The budgets of a FakeMesh, with the refusals of a mesh."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from spawnmesh.content.v1.message_pb2 import TokenUsage
from spawnmesh.session.v1 import budget_pb2 as pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.session_service_pb2 import SpawnSessionRequest
from spawnmesh_calls.field_masks import apply_changes, changed_paths
from spawnmesh_core.errors import FieldViolation, MeshError, invalid
from spawnmesh_core.reasons import Reason

from spawnmesh_client.budget_texts import cost_text
from spawnmesh_client.fake_records import SessionRecord, now

_SUBJECT = "fake"
"""The subject of the token of a FakeMesh."""
_DEFAULT_WAIT = timedelta(days=7)
_ZERO = timedelta()


@dataclass(frozen=True, slots=True)
class _Amount:
    """A limit of a budget and what is used of it."""

    limit: "pb.BudgetLimit.ValueType"
    word: str
    most: float
    used: float

    @property
    def is_reached(self) -> bool:
        """True if no model call begins."""
        return 0 < self.most <= self.used

    def text(self, value: float) -> str:
        """Return the limit, or what is used of it, as a mesh writes it."""
        if self.limit == pb.BUDGET_LIMIT_COST:
            return cost_text(int(value))
        return f"{value:.1f} s" if self.limit == pb.BUDGET_LIMIT_RUN_TIME else f"{int(value)}"


class FakeBudgets:
    """The budgets of the sessions in `records`."""

    def __init__(self, records: Mapping[str, SessionRecord]) -> None:
        self._records = records

    def open(self, request: SpawnSessionRequest, record: SessionRecord) -> None:
        """Give the spawned session the budgets of its parent, and its own.

        Raises INVALID_REQUEST.
        """
        ids = record.session.budget_session_ids
        if parent := self._records.get(request.parent_session_id):
            ids.extend(parent.session.budget_session_ids)
        if not request.HasField("budget"):
            return
        session_id = record.session.session_id
        budget = pb.SessionBudget(session_id=session_id, budget=request.budget, update_time=now(), etag="1")
        if not budget.budget.HasField("max_wait"):
            budget.budget.max_wait.FromTimedelta(_DEFAULT_WAIT)
        if not any(amount.most for amount in _amounts(budget)):
            raise invalid("budget", "has no limit")
        record.budget = budget
        ids.append(session_id)

    def is_used_up(self, record: SessionRecord) -> bool:
        """Return whether a budget that the session shares refuses its next model call."""
        return any(one.reached_limits for one in self.shared(record.session))

    def admits_call(self, record: SessionRecord) -> bool:
        """Count a model call of the running run, and return True.

        Return False if a limit is reached: then the run waits, or it has failed.
        """
        for one in self.shared(record.session):
            if one.reached_limits:
                is_own = one.session_id == record.session.session_id
                used = "; ".join(
                    f"{amount.word} {amount.text(amount.used)} of {amount.text(amount.most)}"
                    if is_own
                    else amount.word
                    for amount in _amounts(one)
                    if amount.is_reached
                )
                wait = one.budget.max_wait.ToTimedelta()
                record.wait_for_budget(one.session_id, wait, used)
                return False
        self.count(record, calls=1)
        return True

    def count(
        self,
        record: SessionRecord,
        *,
        cost_micros: int = 0,
        tokens: int = 0,
        calls: int = 0,
        run_time: timedelta = _ZERO,
    ) -> None:
        """Count what the session has used in all budgets that it shares."""
        for one in self.shared(record.session):
            one.usage.cost_micros += cost_micros
            one.usage.token_count += tokens
            one.usage.model_call_count += calls
            one.usage.run_time.FromTimedelta(one.usage.run_time.ToTimedelta() + run_time)
            _set_reached(one)

    def use(self, record: SessionRecord, used: pb.BudgetUsage) -> None:
        """Count what a model call of the run, which is counted, has used. Its tokens are output."""
        usage = record.session.latest_run.usage
        usage.output_token_count += used.token_count
        usage.cost_micros += used.cost_micros
        self.count(
            record, cost_micros=used.cost_micros, tokens=used.token_count,
            calls=used.model_call_count - 1, run_time=used.run_time.ToTimedelta(),
        )  # fmt: skip

    def shared(self, session: session_pb2.Session) -> list[pb.SessionBudget]:
        """Return the budgets that a session shares, the outermost first."""
        records = (self._records[session_id] for session_id in session.budget_session_ids)
        return [record.budget for record in records if record.budget is not None]

    def update(self, record: SessionRecord, request: pb.UpdateBudgetRequest) -> pb.SessionBudget:
        """Change the limits, and queue the runs that have room.

        Raises BUDGET_MISSING, BUDGET_BELOW_USAGE, ETAG_DIFFERS and INVALID_REQUEST.
        """
        current = record.budget
        if current is None:
            raise MeshError(
                Reason.BUDGET_MISSING,
                f"session {request.session_id} was spawned without a budget of its own, and can get none",
                facts={"session_id": request.session_id},
            )
        if request.etag not in ("", current.etag):
            raise MeshError(
                Reason.ETAG_DIFFERS,
                "the limits have changed: get the budget, and call again with its etag",
                violations=(FieldViolation("etag", "is the etag of another version"),),
                facts={
                    "budget_id": request.session_id, "etag": current.etag, "version": int(current.etag),
                },
            )  # fmt: skip
        changed = pb.SessionBudget()
        changed.CopyFrom(current)
        apply_changes(changed_paths(request.update_mask, request.budget, ()), request.budget, changed.budget)
        if not changed.budget.HasField("max_wait"):
            changed.budget.max_wait.FromTimedelta(_DEFAULT_WAIT)
        if changed.budget == current.budget:
            return current
        details = list(_changes(current, changed))
        changed.etag, changed.updated_by = str(int(current.etag) + 1), _SUBJECT
        changed.update_time.CopyFrom(now())
        _set_reached(changed)
        current.CopyFrom(changed)
        event = record.add_event(session_pb2.SESSION_EVENT_KIND_BUDGET_CHANGED)
        event.detail = f"{', '.join(details)} by {_SUBJECT}"
        self._wake()
        return current

    def _wake(self) -> None:
        """Queue the waiting runs whose budgets all have room."""
        for record in self._records.values():
            if record.waits_for_budget and not self.is_used_up(record):
                record.leave_budget()


def usage_of(records: Iterable[SessionRecord]) -> pb.UsageTotal:
    """Return the sum of the ended runs of the sessions."""
    total = pb.UsageTotal()
    total.usage.SetInParent()
    for record in records:
        total.session_count += 1
        runs = [*record.earlier_runs.values(), record.session.latest_run]
        for run in runs:
            if run.HasField("end_time"):
                total.ended_run_count += 1
                add_usage(total.usage, run.usage)
    return total


def add_usage(total: TokenUsage, used: TokenUsage) -> None:
    """Add tokens and cost."""
    total.input_token_count += used.input_token_count
    total.output_token_count += used.output_token_count
    total.cost_micros += used.cost_micros


def _amounts(one: pb.SessionBudget) -> list[_Amount]:
    most, used = one.budget, one.usage
    return [
        _Amount(pb.BUDGET_LIMIT_TOKENS, "tokens", most.max_token_count, used.token_count),
        _Amount(pb.BUDGET_LIMIT_COST, "cost", most.max_cost_micros, used.cost_micros),
        _Amount(pb.BUDGET_LIMIT_MODEL_CALLS, "model calls", most.max_model_call_count, used.model_call_count),
        _Amount(pb.BUDGET_LIMIT_RUN_TIME, "run time", _seconds(most.max_run_time), _seconds(used.run_time)),
    ]


def _set_reached(one: pb.SessionBudget) -> None:
    reached = [amount.limit for amount in _amounts(one) if amount.is_reached]
    one.ClearField("reached_limits")
    one.reached_limits.extend(reached)


def _changes(current: pb.SessionBudget, changed: pb.SessionBudget) -> Iterator[str]:
    """Yield each change in words. Raises BUDGET_BELOW_USAGE."""
    for old, new in zip(_amounts(current), _amounts(changed), strict=True):
        if new.most == old.most:
            continue
        texts = [new.text(most) if most else "no limit" for most in (old.most, new.most)]
        if 0 < new.most < new.used:
            used = new.text(new.used)
            limit = pb.BudgetLimit.Name(new.limit).removeprefix("BUDGET_LIMIT_")
            raise MeshError(
                Reason.BUDGET_BELOW_USAGE,
                f"{new.word} {texts[1]} is below the {used} that session {current.session_id} and its"
                " descendants have used; a limit of exactly that stops them",
                facts={
                    "session_id": current.session_id, "limit": limit, "used": used, "wanted": texts[1],
                },
            )  # fmt: skip
        yield f"{new.word} {' -> '.join(texts)}"
    waits = [_seconds(one.budget.max_wait) for one in (current, changed)]
    if waits[0] != waits[1]:
        yield f"wait {waits[0]:.0f} s -> {waits[1]:.0f} s"


def _seconds(time: Duration) -> float:
    return time.ToTimedelta().total_seconds()
