"""Budgets of sessions as bars, and what was used of them."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from spawnmesh_console.domain.budget_limits import LimitAmounts, LimitTexts, money, short_money
from spawnmesh_console.domain.spans_of_time import span

_WORDS = {
    "COST": "Cost",
    "TOKENS": "Tokens",
    "MODEL_CALLS": "Model calls",
    "RUN_TIME": "Run time",
}


@dataclass(frozen=True, slots=True)
class UsedBudget:
    """A budget: whose it is, its limits, and what the session and its descendants have used of it.

    `reached` has the words of the limits that are reached, such as `COST`. A run waits for at most
    `max_wait` until there is room.
    """

    session_id: str
    limits: LimitAmounts
    used: LimitAmounts
    reached: Collection[str]
    etag: str
    max_wait: timedelta
    update_time: datetime | None = None
    updated_by: str = ""

    @property
    def bars(self) -> tuple["LimitBar", ...]:
        """A bar for each limit that is set."""
        limits, used = self.limits, self.used
        run_time, max_run_time = used.run_time.total_seconds(), limits.run_time.total_seconds()
        pairs = (
            ("COST", used.cost_micros, limits.cost_micros),
            ("TOKENS", used.token_count, limits.token_count),
            ("MODEL_CALLS", used.model_call_count, limits.model_call_count),
            ("RUN_TIME", run_time, max_run_time),
        )
        return tuple(_bar(name, one, limit, name in self.reached) for name, one, limit in pairs if limit)

    @property
    def wait_text(self) -> str:
        """The time for which a run waits, such as `7 days`; empty if it does not wait."""
        days, rest = divmod(self.max_wait, timedelta(days=1))
        if days and not rest:
            return f"{days} days" if days > 1 else "a day"
        return span(self.max_wait.total_seconds()) if self.max_wait else ""

    @property
    def texts(self) -> LimitTexts:
        """The limits as the texts of a form."""
        return LimitTexts.for_limits(self.limits)


@dataclass(frozen=True, slots=True)
class LimitBar:
    """A limit, and the part of it that is used. `percent` is at most 100."""

    name: str
    percent: float
    used: str
    limit: str
    is_reached: bool

    @property
    def word(self) -> str:
        """The name of the limit for people."""
        return _WORDS[self.name]


@dataclass(frozen=True, slots=True)
class FamilyUsage:
    """The usage of the ended runs of a session and its descendants, and the budgets that the
    session shares, the outermost first.
    """

    cost_micros: int = 0
    token_count: int = 0
    session_count: int = 0
    is_partial: bool = False
    budgets: tuple[UsedBudget, ...] = ()

    @property
    def is_reached(self) -> bool:
        """True if a limit is reached: no run of the session calls a model."""
        return any(one.reached for one in self.budgets)

    def budget_of(self, session_id: str) -> UsedBudget | None:
        """Return the budget of this session, if it is one of them."""
        return next((one for one in self.budgets if one.session_id == session_id), None)


@dataclass(frozen=True, slots=True)
class SentLimits:
    """The form of a budget as it was sent and refused."""

    session_id: str
    texts: LimitTexts
    problem: str


def _bar(name: str, used: float, limit: float, is_reached: bool) -> LimitBar:
    match name:
        case "COST":
            texts = short_money(int(used)), money(int(limit))
        case "RUN_TIME":
            texts = span(used), span(limit)
        case _:
            texts = f"{used:,.0f}", f"{limit:,.0f}"
    return LimitBar(name, round(min(100.0, 100 * used / limit), 2), *texts, is_reached)
