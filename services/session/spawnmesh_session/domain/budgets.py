"""Budgets: limits for a session and its descendants together, and what was used of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_session.domain.etags import etag_of_values
from spawnmesh_session.domain.runs import RunOutcome, RunState

DEFAULT_WAIT = timedelta(days=7)
"""How long a run waits for a higher limit if its budget does not say it."""

_MICROS = 1_000_000


class LimitKind(StrEnum):
    """The limits of a budget, as the contract spells them."""

    TOKENS = "TOKENS"
    COST = "COST"
    MODEL_CALLS = "MODEL_CALLS"
    RUN_TIME = "RUN_TIME"


@dataclass(frozen=True, slots=True)
class FamilyLimits:
    """The limits of a budget. 0 is no limit. A run waits for a higher limit for `wait`."""

    token_count: int = 0
    cost_micros: int = 0
    model_call_count: int = 0
    run_time: timedelta = timedelta()
    wait: timedelta = DEFAULT_WAIT

    @property
    def has_limit(self) -> bool:
        """Return whether anything is limited."""
        return bool(self.token_count or self.cost_micros or self.model_call_count or self.run_time)


@dataclass(frozen=True, slots=True)
class FamilyUse:
    """What a session and its descendants have used, or what is added to it."""

    token_count: int = 0
    cost_micros: int = 0
    model_call_count: int = 0
    run_time: timedelta = timedelta()


@dataclass(frozen=True, slots=True)
class FamilyBudget:
    """The budget of a session, which its descendants share.

    `version` rises with each change of the limits; `updated_by` made the last one.
    """

    session_id: str
    limits: FamilyLimits
    used: FamilyUse
    version: int
    update_time: datetime
    updated_by: str

    @property
    def etag(self) -> str:
        """Return the etag of the limits."""
        return etag_of_values(self.session_id, self.version)

    @property
    def reached(self) -> tuple[LimitKind, ...]:
        """Return the limits that are reached."""
        return tuple(kind for kind, limit, used in self._pairs() if limit and used >= limit)

    def exceeded_by_use(self) -> tuple[LimitKind, str, str] | None:
        """Return the first limit that is below what is used, with what is used and the limit."""
        for kind, limit, used in self._pairs():
            if limit and used > limit:
                return kind, amount(kind, used), amount(kind, limit)
        return None

    def describe_reached(self) -> str:
        """Return one line for people about the limits that are reached."""
        return "; ".join(
            f"{_WORDS[kind]} {amount(kind, used)} of {amount(kind, limit)}"
            for kind, limit, used in self._pairs()
            if limit and used >= limit
        )

    def _pairs(self) -> tuple[tuple[LimitKind, float, float], ...]:
        limits, used = self.limits, self.used
        return (
            (LimitKind.TOKENS, limits.token_count, used.token_count),
            (LimitKind.COST, limits.cost_micros, used.cost_micros),
            (LimitKind.MODEL_CALLS, limits.model_call_count, used.model_call_count),
            (LimitKind.RUN_TIME, limits.run_time.total_seconds(), used.run_time.total_seconds()),
        )

    def describe_change(self, changed: FamilyLimits) -> str:
        """Return one line for people about the limits that differ; empty if none does."""
        after = replace(self, limits=changed)
        parts = [
            f"{_WORDS[kind]} {_limit(kind, old)} -> {_limit(kind, new)}"
            for (kind, old, _), (_, new, _) in zip(self._pairs(), after._pairs(), strict=True)
            if old != new
        ]
        if self.limits.wait != changed.wait:
            parts.append(f"wait {_seconds(self.limits.wait)} -> {_seconds(changed.wait)}")
        return ", ".join(parts)


_WORDS = {
    LimitKind.TOKENS: "tokens",
    LimitKind.COST: "cost",
    LimitKind.MODEL_CALLS: "model calls",
    LimitKind.RUN_TIME: "run time",
}


def amount(kind: LimitKind, value: float) -> str:
    """Return a limit or what is used of it as text: `0.52` of a currency, `17 s`, or a count."""
    if kind is LimitKind.COST:
        whole, fraction = divmod(int(value), _MICROS)
        digits = f"{fraction:06}".rstrip("0").ljust(2, "0")
        return f"{whole}.{digits}"
    if kind is LimitKind.RUN_TIME:
        return f"{value:.1f} s"
    return f"{int(value)}"


def _limit(kind: LimitKind, value: float) -> str:
    return amount(kind, value) if value else "no limit"


def _seconds(value: timedelta) -> str:
    return f"{value.total_seconds():.0f} s"


def first_reached(budgets: Sequence[FamilyBudget]) -> FamilyBudget | None:
    """Return the first budget with a limit that is reached; None if all have room."""
    return next((budget for budget in budgets if budget.reached), None)


def budget_exceeded(budget: FamilyBudget, run_id: str) -> MeshError:
    """Build the refusal of a model call of the run: the budget has no room."""
    return MeshError(
        Reason.SESSION_BUDGET_EXCEEDED,
        f"the budget of session {budget.session_id} is used up: {budget.describe_reached()}; the run waits"
        " until it is raised",
        facts={"session_id": budget.session_id, "run_id": run_id, "limits": ",".join(budget.reached)},
    )


def budget_missing(session_id: str) -> MeshError:
    """Build the refusal of a change of a budget that the session does not have."""
    return MeshError(
        Reason.BUDGET_MISSING,
        f"session {session_id} was spawned without a budget of its own, and can get none; spawn with one,"
        " or change that of an ancestor",
        facts={"session_id": session_id},
    )


def require_above_use(budget: FamilyBudget) -> None:
    """Raise BUDGET_BELOW_USAGE if one of its limits is below what is used."""
    found = budget.exceeded_by_use()
    if found is None:
        return
    kind, used, wanted = found
    raise MeshError(
        Reason.BUDGET_BELOW_USAGE,
        f"{_WORDS[kind]} {wanted} is below the {used} that session {budget.session_id} and its descendants"
        " have used; a limit of exactly that stops them",
        facts={"session_id": budget.session_id, "limit": kind.value, "used": used, "wanted": wanted},
    )


def unraised(budget: FamilyBudget, usage: dict[str, Any] | None = None) -> RunOutcome:
    """Return the end of a run that may not wait for its budget, or not any longer."""
    return RunOutcome(
        state=RunState.FAILED,
        error_reason=Reason.SESSION_BUDGET_EXCEEDED,
        error_message=f"the budget of session {budget.session_id} is used up: {budget.describe_reached()}",
        usage=usage,
    )


@dataclass(frozen=True, slots=True)
class OpenModelCall:
    """A model call that counts in budgets and was not reported yet.

    It uses at most these tokens and this cost. If `is_counted`, the budgets have them.
    """

    call_id: str
    session_id: str
    run_id: str
    largest_token_count: int
    largest_cost_micros: int
    is_counted: bool = False

    @property
    def largest(self) -> FamilyUse:
        """Return the most that the call uses beside being a call."""
        return FamilyUse(self.largest_token_count, self.largest_cost_micros)


def unreported(calls: Sequence[OpenModelCall]) -> FamilyUse:
    """Return the most that these calls use, of which the budgets have nothing yet."""
    return FamilyUse(
        sum(call.largest_token_count for call in calls), sum(call.largest_cost_micros for call in calls)
    )


def settled(call: OpenModelCall, token_count: int, cost_micros: int) -> FamilyUse:
    """Return what to add to the budgets for a call that used so much; they may have too much."""
    if not call.is_counted:
        return FamilyUse(token_count, cost_micros)
    return FamilyUse(token_count - call.largest_token_count, cost_micros - call.largest_cost_micros)


@dataclass(frozen=True, slots=True)
class RunsTotal:
    """What the ended runs of some sessions have used, as their runners reported it."""

    usage: dict[str, Any]
    session_count: int
    ended_run_count: int
