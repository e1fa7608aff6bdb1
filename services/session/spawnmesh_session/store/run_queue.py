"""The queue of runs: ids and times of runs that have not ended.

A runner claims a run in two steps: `take_claimable_runs` takes its entry here, and
`store.runs.claim_run` then claims the run itself. `extend_lease` extends the lease of a claim.
`undo_take` and `release_entry` make the run claimable again. `store.runs` inserts the entry with
the run.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from psycopg import sql
from spawnmesh_postgres.database import ALL_TENANTS, Connection, Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.runs import CallingRun, Interrupt, LostEntry

_SQL = load_statements(__name__)

CHANNEL = "run_queued"
"""Its payload is the tenant that has a run to claim."""
RETRY_IN = timedelta(seconds=5)
"""The pause before the next try to end a run that could not be ended."""


@dataclass(frozen=True, slots=True)
class TakeQuota:
    """The most runs of a take: `limit` in all, and `share` of a tenant."""

    limit: int
    share: int


@dataclass(frozen=True, slots=True)
class LostRun:
    """A run that no runner can finish, with the due time that its entry has since it was taken."""

    tenant_id: str
    run_id: str
    due_time: datetime


async def delete_entry(connection: Connection, tenant_id: str, run_id: str) -> None:
    """Delete the entry of a run."""
    await connection.execute(_SQL["delete_entry"], {"tenant_id": tenant_id, "run_id": run_id})


@dataclass(frozen=True, slots=True)
class TakenRun:
    """A run taken from the queue. `wait` is the time for which it was claimable.

    If it `was_leased`, the lease of its last runner had expired. `used_attempts` is 1, or 0 if that
    runner may only have met an outage. `taken_until` is the end of the lease of the take, and its
    fence: once the entry has another one, the take is void.
    """

    tenant_id: str
    run_id: str
    wait: timedelta
    was_leased: bool
    used_attempts: int
    taken_until: datetime


@dataclass(frozen=True, slots=True)
class TakenRuns:
    """Runs taken from the queue.

    If `others_took`, another claim was in progress, and it is worth looking again soon.
    """

    runs: list[TakenRun]
    others_took: bool


@dataclass(frozen=True, slots=True)
class ServedRuns:
    """The runs that a runner serves. No tenants means all tenants, no agents all agents."""

    runtimes: Collection[str]
    tenants: Collection[str] = ()
    agents: Collection[str] = ()


async def take_claimable_runs(
    database: Database, limit: int, lease_ttl: timedelta, served: ServedRuns, *, reserved: int = 0
) -> TakenRuns:
    """Take claimable runs that are served, in the scope of every tenant and one round trip.

    Each is leased, and one attempt is used, or none if its last runner may only have met an outage.
    So many of the limit are `reserved` for tenants that have no leased run.
    """
    values = {
        "limit": limit,
        "reserved": reserved,
        "lease_ttl": lease_ttl,
        "tenants": list(served.tenants) or None,
        "agents": list(served.agents) or None,
    }
    [rows] = await database.transact(ALL_TENANTS, (_take_statement(served), values))
    runs = [
        TakenRun(
            tenant_id=row["tenant_id"],
            run_id=row["run_id"],
            wait=row["wait"],
            was_leased=row["was_leased"],
            used_attempts=row["used_attempts"],
            taken_until=row["taken_until"],
        )
        for row in rows
        if row["run_id"]
    ]
    return TakenRuns(runs, any(row["others_took"] for row in rows))


def _take_statement(served: ServedRuns) -> str:
    """Return the statement for what the runner serves.

    The few sets of runtimes, and a filter that is not set, are in the text and no parameters.
    PostgreSQL then makes one plan and keeps it. It would plan each take anew if these were
    parameters, since the plan for the given values looks much cheaper than the one for any values,
    and planning takes longer than the take.
    """
    runtimes = sql.Literal(sorted(served.runtimes)).as_string()
    statement = _SQL["take_claimable_runs"].replace("%(runtimes)s", runtimes)
    for name, values in (("tenants", served.tenants), ("agents", served.agents)):
        if not values:
            statement = statement.replace(f"%({name})s", "null")
    return statement


@dataclass(frozen=True, slots=True)
class ExtendedLease:
    """An extended lease: its end, the time until the run's deadline, and the messages that wait."""

    end_time: datetime
    time_left: timedelta
    unread_count: int
    interrupt: Interrupt


async def extend_lease(
    database: Database, tenant_id: str, calling: CallingRun, lease_ttl: timedelta
) -> ExtendedLease | None:
    """Let the lease last for `lease_ttl` from the database's now, in one round trip.

    This is a transaction of its own. Return None, with nothing done, if the run is not held at this
    epoch.
    """
    values = {
        "tenant_id": tenant_id,
        "session_id": calling.session_id,
        "run_id": calling.run_id,
        "epoch": calling.epoch,
        "lease_ttl": lease_ttl,
    }
    extended, [news] = await database.transact(
        tenant_id, (_SQL["extend_lease"], values), (_SQL["read_news"], values)
    )
    if not extended:
        return None
    interrupt = Interrupt.TURN if news["is_urgent"] else Interrupt.NONE
    if news["is_interrupted"]:
        interrupt = Interrupt.RUN
    return ExtendedLease(**extended[0], unread_count=news["unread"], interrupt=interrupt)


async def has_urgent_message(connection: Connection, tenant_id: str, session_id: str, run_id: str) -> bool:
    """Return whether a message that interrupts the turn of the run waits in its inbox."""
    values = {"tenant_id": tenant_id, "session_id": session_id, "run_id": run_id}
    row = await (await connection.execute(_SQL["read_news"], values)).fetchone()
    return row is not None and bool(row["is_urgent"])


async def undo_take(connection: Connection, taken: TakenRun) -> None:
    """Undo `take_claimable_runs`: the entry is as before, and runners wake on the commit.

    Do nothing if the lease of the take is over or was replaced, as by a claim.
    """
    await connection.execute(_SQL["undo_take"], asdict(taken))


async def release_entry(
    connection: Connection, tenant_id: str, run_id: str, *, attempt_count: int, pause: timedelta
) -> None:
    """Let the run wait again, with so many attempts used. It can be taken after the pause.

    Without a pause, runners wake when the transaction commits; after a pause their next look finds
    the run.
    """
    values = {"tenant_id": tenant_id, "run_id": run_id, "attempt_count": attempt_count, "pause": pause}
    await connection.execute(_SQL["release_entry"], values)
    if not pause:
        await connection.execute(_SQL["notify_runners"], values)


async def park_entry(
    connection: Connection,
    tenant_id: str,
    run_id: str,
    *,
    attempt_count: int,
    expire_time: datetime,
    for_budget: bool = False,
) -> None:
    """Let the run, with so many attempts used, be claimed by no runner, and expire at this time.

    It waits for a person, or for a budget.
    """
    values = {
        "tenant_id": tenant_id,
        "run_id": run_id,
        "attempt_count": attempt_count,
        "expire_time": expire_time,
        "for_budget": for_budget,
    }
    await connection.execute(_SQL["park_entry"], values)


async def count_parked_runs(connection: Connection, tenant_id: str, limit: int) -> int:
    """Return the number of the tenant's runs that wait for people or budgets, or `limit` if it is
    more.
    """
    values = {"tenant_id": tenant_id, "limit": limit}
    row = await (await connection.execute(_SQL["count_parked_runs"], values)).fetchone()
    return int(row["parked_count"]) if row else 0


async def unpark_entry(connection: Connection, tenant_id: str, run_id: str, deadline_time: datetime) -> None:
    """Let a parked run be claimed until its deadline. Runners wake when the transaction commits."""
    values = {"tenant_id": tenant_id, "run_id": run_id, "deadline_time": deadline_time}
    await connection.execute(_SQL["unpark_entry"], values)
    await connection.execute(_SQL["notify_runners"], values)


async def set_attempts(connection: Connection, tenant_id: str, run_id: str, attempt_count: int) -> None:
    """Set the number of attempts that the run has used."""
    values = {"tenant_id": tenant_id, "run_id": run_id, "attempt_count": attempt_count}
    await connection.execute(_SQL["set_attempts"], values)


async def notify_runners_of_place(connection: Connection, tenant_id: str) -> None:
    """Wake the runners if the run that the transaction ended makes place for a waiting run."""
    await connection.execute(_SQL["notify_runners_of_place"], {"tenant_id": tenant_id})


async def take_lost_runs(
    connection: Connection, quota: TakeQuota, again_in: timedelta, lease_ttl: timedelta
) -> list[LostRun]:
    """Take runs that no runner can finish, in the scope of every tenant.

    A run that is not ended is taken again after `again_in`. Leases last for `lease_ttl`.
    """
    values = {
        "limit": quota.limit,
        "share": quota.share,
        "again_in": again_in,
        "lease_ttl": lease_ttl,
    }
    rows = await (await connection.execute(_SQL["take_lost_runs"], values)).fetchall()
    return [LostRun(**row) for row in rows]


async def lock_lost_entry(connection: Connection, lost: LostRun) -> LostEntry | None:
    """Lock and return the entry of a taken run, which is locked; None if the run has ended."""
    values = {"tenant_id": lost.tenant_id, "run_id": lost.run_id, "taken_due_time": lost.due_time}
    row = await (await connection.execute(_SQL["lock_lost_entry"], values)).fetchone()
    return LostEntry(**row) if row else None


async def get_lease_end(connection: Connection, tenant_id: str, run_id: str) -> datetime | None:
    """Return the end of the run's lease, which may be past; None if no runner has the run."""
    values = {"tenant_id": tenant_id, "run_id": run_id}
    row = await (await connection.execute(_SQL["get_lease_end"], values)).fetchone()
    end_time: datetime | None = row["due_time"] if row else None
    return end_time


async def lock_if_held(connection: Connection, tenant_id: str, run_id: str) -> bool:
    """Lock the entry of a run that is locked. Return whether a runner has its lease."""
    values = {"tenant_id": tenant_id, "run_id": run_id}
    row = await (await connection.execute(_SQL["lock_entry"], values)).fetchone()
    return row is not None and bool(row["is_held"])


@dataclass(frozen=True, slots=True)
class LiveRuns:
    """The number of live runs by what they do: `waiting` for a runner, `held` by one,
    `waiting_approval` and `waiting_budget`; and for how long the oldest has waited for a runner,
    by runtime, and for a person.
    """

    by_state: Mapping[str, int]
    oldest_seconds: Mapping[str, float]
    oldest_approval_seconds: float


async def count_live_runs(connection: Connection) -> LiveRuns:
    """Count the live runs of all tenants. It is read in the scope of every tenant."""
    row = await (await connection.execute(_SQL["count_live_runs"])).fetchone()
    counts = dict(row or {})
    ages = {name: counts.pop(f"{name}_age", None) or 0.0 for name in ("subagent", "external")}
    approval_age = counts.pop("approval_age", None) or 0.0
    return LiveRuns(counts, ages, approval_age)
