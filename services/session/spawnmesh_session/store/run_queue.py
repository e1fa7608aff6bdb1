"""The queue of runs: ids and times of runs that have not ended.

A runner claims a run in two steps: `take_claimable_runs` takes its entry here, and
`store.runs.claim_run` then claims the run itself. `extend_lease` extends the lease of a claim.
`undo_take` and `release_entry` make the run claimable again. `store.runs` inserts the entry with
the run.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from spawnmesh_postgres.database import ALL_TENANTS, Connection, Database
from spawnmesh_postgres.statements import load_statements

_SQL = load_statements(__name__)

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
    timed_out: bool
    due_time: datetime


async def delete_entry(connection: Connection, tenant_id: str, run_id: str) -> None:
    """Delete the entry of a run."""
    await connection.execute(_SQL["delete_entry"], {"tenant_id": tenant_id, "run_id": run_id})


@dataclass(frozen=True, slots=True)
class TakenRun:
    """A run taken from the queue. `wait` is the time for which it was claimable.

    If it `was_leased`, the lease of its last runner had expired. `used_attempts` is 1, or 0 if that
    runner may only have met an outage.
    """

    tenant_id: str
    run_id: str
    wait: timedelta
    was_leased: bool
    used_attempts: int


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
        "runtimes": list(served.runtimes),
        "tenants": list(served.tenants) or None,
        "agents": list(served.agents) or None,
    }
    async with database.pipelined(ALL_TENANTS) as connection:
        taken = await connection.execute(_SQL["take_claimable_runs"], values)
    rows = await taken.fetchall()
    runs = [
        TakenRun(row["tenant_id"], row["run_id"], row["wait"], row["was_leased"], row["used_attempts"])
        for row in rows
        if row["run_id"]
    ]
    return TakenRuns(runs, any(row["others_took"] for row in rows))


async def extend_lease(
    connection: Connection, tenant_id: str, run_id: str, lease_ttl: timedelta
) -> datetime | None:
    """Let the lease last for `lease_ttl` from the database's now; return its end."""
    values = {"tenant_id": tenant_id, "run_id": run_id, "lease_ttl": lease_ttl}
    row = await (await connection.execute(_SQL["extend_lease"], values)).fetchone()
    return row["due_time"] if row else None


async def undo_take(connection: Connection, taken: TakenRun) -> None:
    """Undo `take_claimable_runs`: the entry is as before, and runners wake on the commit."""
    await _return_entry(connection, taken, timedelta())


async def release_entry(
    connection: Connection, tenant_id: str, run_id: str, pause: timedelta = timedelta()
) -> None:
    """Let the run wait again: its attempt is not used, and the run can be taken after a pause.

    Without a pause, runners wake when the transaction commits; after a pause their next look finds
    the run.
    """
    held = TakenRun(tenant_id, run_id, timedelta(), was_leased=False, used_attempts=1)
    await _return_entry(connection, held, pause)


async def _return_entry(connection: Connection, taken: TakenRun, pause: timedelta) -> None:
    values = {
        "tenant_id": taken.tenant_id,
        "run_id": taken.run_id,
        "was_leased": taken.was_leased,
        "used_attempts": taken.used_attempts,
        "pause": pause,
    }
    await connection.execute(_SQL["return_entry"], values)
    if not pause:
        await connection.execute(_SQL["notify_runners"])


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


async def is_lost_run(connection: Connection, tenant_id: str, run_id: str, taken_due_time: datetime) -> bool:
    """Return whether a taken run, which the caller has locked since, is still lost."""
    values = {"tenant_id": tenant_id, "run_id": run_id, "taken_due_time": taken_due_time}
    return await (await connection.execute(_SQL["is_lost_run"], values)).fetchone() is not None


async def count_live_runs(connection: Connection) -> dict[str, int]:
    """Return the number of `waiting` and of `held` runs, in the scope of every tenant."""
    row = await (await connection.execute(_SQL["count_live_runs"])).fetchone()
    return dict(row or {})
