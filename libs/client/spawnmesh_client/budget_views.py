"""Budgets of sessions, and the usage of sessions, for programs.

Costs are in units of the currency of the router's price table, exact to a millionth. Times are in
UTC.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import auto

from spawnmesh.session.v1 import budget_pb2 as pb

from spawnmesh_client.view_of import Word, view_of, word_of
from spawnmesh_client.views import Usage


class BudgetLimit(Word):
    """The limits of a budget."""

    UNKNOWN = auto()
    TOKENS = auto()
    COST = auto()
    MODEL_CALLS = auto()
    RUN_TIME = auto()


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits for a session and all its descendants together. None means no limit.

    - `cost` is in units of the currency, such as 0.5. In a view it is a float.
    - `tokens` are those of input, with cache reads, and output.
    - `calls` are the model calls.
    - `run_time` is the time for which runners work, over all runs, as a timedelta or in seconds.
      Runs that work at the same time count each. In a view it is a timedelta.
    - `wait` is the time for which a run waits for a higher limit before it fails, as a timedelta or
      in seconds: seven days if it is None. With 0, the run fails at once. In a view it is a
      timedelta.

    A limit is above 0.
    """

    cost: float | Decimal | None = None
    tokens: int | None = None
    calls: int | None = None
    run_time: timedelta | float | None = None
    wait: timedelta | float | None = None


@dataclass(frozen=True, slots=True)
class BudgetUsage:
    """The amounts that a session and its descendants have used of a budget.

    `calls` are the model calls that have begun, and `run_time` is counted up to the newest of them.
    """

    cost: float
    tokens: int
    calls: int
    run_time: timedelta


@dataclass(frozen=True, slots=True)
class SessionBudget:
    """The budget of a session, which its descendants share.

    `reached` has the limits that are used up: until they are raised, no model call begins.
    `updated_by` is the subject of the token that changed the limits last; it is empty if none has.
    """

    session_id: str
    budget: Budget
    usage: BudgetUsage
    reached: tuple[BudgetLimit, ...]
    etag: str
    update_time: datetime | None
    updated_by: str


@dataclass(frozen=True, slots=True)
class UsageSum:
    """The tokens and the cost of all runs that have ended, of one session or of several."""

    usage: Usage
    session_count: int
    ended_run_count: int


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """The usage of a session, and of its family: the session and its descendants.

    `budgets` are those that the session shares: those of its ancestors, the outermost first, and
    its own. They also count the runs that have not ended. With `is_family_partial`, `family` counts
    only the first 10,000 sessions.
    """

    session: UsageSum
    family: UsageSum
    is_family_partial: bool
    budgets: tuple[SessionBudget, ...]


def usage_view(answer: pb.GetSessionUsageResponse) -> SessionUsage:
    """Return the view of what a session has used."""
    return SessionUsage(
        view_of(UsageSum, answer.session),
        view_of(UsageSum, answer.family),
        answer.is_family_partial,
        tuple(map(budget_view, answer.budgets)),
    )


def budget_view(one: pb.SessionBudget) -> SessionBudget:
    """Return the view of a budget."""
    usage = one.usage
    return view_of(
        SessionBudget,
        one,
        budget=limits_view(one.budget),
        usage=BudgetUsage(
            usage.cost_micros / 1e6,
            usage.token_count,
            usage.model_call_count,
            usage.run_time.ToTimedelta(),
        ),
        reached=tuple(
            word_of(BudgetLimit, number, pb.BudgetLimit.DESCRIPTOR) for number in one.reached_limits
        ),
    )


def limits_view(limits: pb.Budget) -> Budget:
    """Return the view of the limits of a budget."""
    return Budget(
        cost=limits.max_cost_micros / 1e6 or None,
        tokens=limits.max_token_count or None,
        calls=limits.max_model_call_count or None,
        run_time=limits.max_run_time.ToTimedelta() or None,
        wait=limits.max_wait.ToTimedelta() if limits.HasField("max_wait") else None,
    )
