"""The spending of tenants by day, agent and model, and the rules that bound its rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta

from spawnmesh_model_router.domain.charges import ChargedUsage
from spawnmesh_model_router.domain.listed_span import earlier, listed_span

KEPT_DAYS = 90
"""The days that are kept, the current one included."""
MAX_AGENTS_OF_DAY = 200
"""The agents of a day that have rows of their own. Tenants name agents as they like."""
FURTHER_AGENTS = "*"
"""It stands for the agents beyond that number, and is no agent id."""
NO_AGENT = ""
"""It stands for calls that no run made."""

_DEFAULT_DAYS = 30


@dataclass(frozen=True, slots=True, order=True)
class SpendKey:
    """A day (UTC), an agent, and a model as `provider/model`: one row of a tenant."""

    day: date
    agent_id: str
    model: str


@dataclass(frozen=True, slots=True)
class Spend:
    """The number of charged answers, and what they used."""

    call_count: int
    charged: ChargedUsage

    def __add__(self, other: "Spend") -> "Spend":
        return Spend(self.call_count + other.call_count, self.charged + other.charged)


@dataclass(slots=True)
class SpendSums:
    """The sums of a tenant's spending by key, with a bounded number of agents for each day.

    `agents` are those that have rows of their own on a day: known ones can be given.
    """

    agents: dict[date, set[str]] = field(default_factory=dict)
    sums: dict[SpendKey, Spend] = field(default_factory=dict)

    def fold(self, key: SpendKey) -> SpendKey:
        """Return the key under which the spending counts. An agent beyond the bound of its day
        counts as FURTHER_AGENTS.
        """
        agents = self.agents.get(key.day, ())
        is_own = key.agent_id in (NO_AGENT, FURTHER_AGENTS) or key.agent_id in agents
        if is_own or len(agents) < MAX_AGENTS_OF_DAY:
            return key
        return SpendKey(key.day, FURTHER_AGENTS, key.model)

    def add(self, key: SpendKey, spend: Spend) -> None:
        """Add the spending under its key, or under that of the further agents of its day."""
        key = self.fold(key)
        if key.agent_id not in (NO_AGENT, FURTHER_AGENTS):
            self.agents.setdefault(key.day, set()).add(key.agent_id)
        known = self.sums.get(key)
        self.sums[key] = spend if known is None else known + spend


def fold_spend(spends: Mapping[SpendKey, Spend], stored_agents: Mapping[date, set[str]]) -> SpendSums:
    """Return the spending as it is to be stored beside the agents that have rows already."""
    folded = SpendSums({day: set(agents) for day, agents in stored_agents.items()})
    for key in sorted(spends):
        folded.add(key, spends[key])
    return folded


@dataclass(frozen=True, slots=True)
class SpendSpan:
    """The days from `first` to `last`, both included; no day if `last` is before `first`."""

    first: date
    last: date

    @classmethod
    def of(cls, start: datetime | None, end: datetime | None, now: datetime) -> "SpendSpan":
        """Return the kept days that begin at `start` or later and before `end`.

        Without an end it is now; without a start it is 30 days earlier. Raises MeshError
        INVALID_REQUEST for a span that ends before it starts, or is longer than what is kept.
        """
        start, end = listed_span(
            start,
            end,
            now,
            default=timedelta(days=_DEFAULT_DAYS),
            kept=timedelta(days=KEPT_DAYS),
            kept_words=f"{KEPT_DAYS} days",
        )
        return cls(max(_next_day(start), first_kept_day(now)), earlier(end, timedelta(microseconds=1)).date())


def first_kept_day(now: datetime) -> date:
    """Return the first of the days that are kept."""
    return now.astimezone(UTC).date() - timedelta(days=KEPT_DAYS - 1)


def midnight(day: date) -> datetime:
    """Return the beginning of the day."""
    return datetime.combine(day, time(), UTC)


def _next_day(moment: datetime) -> date:
    """Return the first day that begins at this moment or later."""
    day = moment.date()
    return day if moment == midnight(day) or day == date.max else day + timedelta(days=1)
