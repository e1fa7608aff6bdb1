"""Budgets: limits for a session and its descendants together, and what was used of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_session.domain.etags import etag_of_values
from spawnmesh_session.domain.runs import Run, RunOutcome, RunState

DEFAULT_WAIT = timedelta(days=7)
"""The wait of a run for a higher limit, if its budget does not say it."""

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
    """Use of a session and its descendants together, or an addition to it."""

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

    def describe_reached(self, session_id: str) -> str:
        """Return one line about the limits that are reached, for a run of the session.

        It has amounts only for the budget of the session itself: a run does not see those of its
        ancestors.
        """
        is_own = session_id == self.session_id
        reached = [
            f"{_WORDS[kind]} {amount(kind, used)} of {amount(kind, limit)}" if is_own else _WORDS[kind]
            for kind, limit, used in self._pairs()
            if limit and used >= limit
        ]
        return f"the budget of session {self.session_id} is used up: {'; '.join(reached)}"

    def require_above_use(self, changed: FamilyLimits) -> None:
        """Raise BUDGET_BELOW_USAGE if a limit that changes would be below what is used."""
        after = replace(self, limits=changed)
        for (kind, old, _), (_, new, used) in zip(self._pairs(), after._pairs(), strict=True):
            if new and new != old and used > new:
                raise _below_use(self.session_id, kind, used=amount(kind, used), wanted=amount(kind, new))

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


def budget_exceeded(budget: FamilyBudget, run: Run) -> MeshError:
    """Build the refusal of a model call of the run: the budget has no room."""
    return MeshError(
        Reason.SESSION_BUDGET_EXCEEDED,
        f"{budget.describe_reached(run.session_id)}; give the run up with AwaitBudget",
        facts={"session_id": budget.session_id, "run_id": run.run_id, "limits": ",".join(budget.reached)},
    )


def budget_missing(session_id: str) -> MeshError:
    """Build the refusal of a change of a budget that the session does not have."""
    return MeshError(
        Reason.BUDGET_MISSING,
        f"session {session_id} was spawned without a budget of its own, and can get none; spawn with one,"
        " or change that of an ancestor",
        facts={"session_id": session_id},
    )


def _below_use(session_id: str, kind: LimitKind, *, used: str, wanted: str) -> MeshError:
    return MeshError(
        Reason.BUDGET_BELOW_USAGE,
        f"{_WORDS[kind]} {wanted} is below the {used} that session {session_id} and its descendants have"
        " used; a limit of exactly that stops them",
        facts={"session_id": session_id, "limit": kind.value, "used": used, "wanted": wanted},
    )


def unraised(budget: FamilyBudget, session_id: str, usage: dict[str, Any] | None = None) -> RunOutcome:
    """Return the end of a run of the session that may not wait, or not any longer."""
    return RunOutcome(
        state=RunState.FAILED,
        error_reason=Reason.SESSION_BUDGET_EXCEEDED,
        error_message=budget.describe_reached(session_id),
        usage=usage,
    )


@dataclass(frozen=True, slots=True)
class OpenModelCall:
    """A model call that counts in budgets and was not reported yet.

    It uses at most these tokens and this cost. If `is_counted`, the budgets of
    `budget_session_ids` have them. If `is_reported`, they have what it used.
    """

    call_id: str
    session_id: str
    run_id: str
    largest_token_count: int
    largest_cost_micros: int
    budget_session_ids: tuple[str, ...] = ()
    is_counted: bool = False
    is_reported: bool = False

    @property
    def largest(self) -> FamilyUse:
        """Return the most that the call uses beside being a call."""
        return FamilyUse(self.largest_token_count, self.largest_cost_micros)


def settled(call: OpenModelCall, token_count: int, cost_micros: int) -> FamilyUse:
    """Return what to add to the budgets for a call that used so much; they may have too much."""
    if not call.is_counted:
        return FamilyUse(token_count, cost_micros)
    return FamilyUse(token_count - call.largest_token_count, cost_micros - call.largest_cost_micros)


@dataclass(frozen=True, slots=True)
class RunsTotal:
    """The usage of the ended runs of some sessions, as their runners reported it."""

    usage: dict[str, Any]
    session_count: int
    ended_run_count: int
