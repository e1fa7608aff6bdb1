"""The table of jobs.

A function that ends an attempt does nothing if the worker has lost its claim meanwhile. In the
scope of every tenant, ids and times of jobs are seen alone: what is done for a job, and what is
read of it beside them, happens in the scope of its tenant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from spawnmesh_postgres.database import ALL_TENANTS, Connection, Database, switch_tenant
from spawnmesh_postgres.jobs.job import Again, AtEnd, ClaimedJob, NewJob
from spawnmesh_postgres.pipelines import Statement
from spawnmesh_postgres.statements import load_statements

_SQL = load_statements(__name__)

CHANNEL = "jobs"
"""The notification channel that wakes the workers of the service."""


@dataclass(frozen=True, slots=True)
class ClaimQuota:
    """The most jobs of a claim: `limit` in all, and for a tenant `share` less its `busy` ones."""

    limit: int
    share: int
    busy: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as operators see it. A job without `due_time` is held until something makes it due."""

    tenant_id: str
    kind: str
    key: str
    due_time: datetime | None
    attempt_count: int
    is_working: bool
    arguments: dict[str, Any]
    traceparent: str
    create_time: datetime
    dead_time: datetime | None
    last_error: str


@dataclass(frozen=True, slots=True)
class JobCounts:
    """The jobs of a kind by state, and the age of the oldest one that waits."""

    waiting: int = 0
    working: int = 0
    dead: int = 0
    oldest_seconds: float = 0.0


JobId = tuple[str, str, str]
"""The tenant, the kind and the key of a job."""


async def enqueue(connection: Connection, tenant_id: str, *jobs: NewJob) -> None:
    """Enqueue jobs with the caller's transaction, by one statement without rows to fetch.

    A job whose key is known stays as it is.
    """
    if jobs:
        values = {"tenant_id": tenant_id, "jobs": jobs_parameter(*jobs)}
        await connection.execute(_SQL["enqueue_jobs"], values)


def jobs_parameter(*jobs: NewJob) -> Jsonb:
    """Return the jobs as a parameter of `enqueue_jobs`."""
    return Jsonb(
        [
            {
                "kind": job.kind,
                "key": job.key,
                "due_in": job.due_in.total_seconds(),
                "arguments": dict(job.arguments),
                "traceparent": job.traceparent,
            }
            for job in jobs
        ]
    )


async def reschedule(connection: Connection, tenant_id: str, job: NewJob) -> None:
    """Enqueue the job, or make it due anew with all its attempts, also if a worker has it."""
    values = {
        "tenant_id": tenant_id,
        "kind": job.kind,
        "key": job.key,
        "due_in": job.due_in,
        "arguments": Jsonb(dict(job.arguments)),
        "traceparent": job.traceparent,
    }
    await connection.execute(_SQL["reschedule_job"], values)


async def delay(connection: Connection, job_id: JobId, due_in: timedelta, *, claim_id: UUID | None) -> None:
    """Make a job due after `due_in` that is claimed with `claim_id`, or that no worker has.

    Do nothing if the claim was lost, if a worker has the job, or if there is none.
    """
    values = {**_key(job_id), "due_in": due_in, "claim_id": claim_id}
    await connection.execute(_SQL["delay_job"], values)


async def delete(connection: Connection, tenant_id: str, kind: str, *keys: str) -> None:
    """Delete jobs whose work is done, or needless, whether or not a worker has them."""
    values = {"tenant_id": tenant_id, "kind": kind, "keys": list(keys)}
    await connection.execute(_SQL["delete_jobs"], values)


async def delete_kinds(connection: Connection, tenant_id: str, kinds: Sequence[str]) -> int:
    """Delete all jobs of these kinds. Return how many of them a worker had claimed."""
    values = {"tenant_id": tenant_id, "kinds": list(kinds)}
    return len(await (await connection.execute(_SQL["delete_jobs_of_kinds"], values)).fetchall())


def claim_statement(kind: str, quota: ClaimQuota, claim_for: timedelta) -> Statement:
    """Return the statement that claims due jobs of the kind for a time."""
    values = {
        "kind": kind,
        "limit": quota.limit,
        "share": quota.share,
        "busy": Jsonb(dict(quota.busy)),
        "claim_for": claim_for,
    }
    return _SQL["claim_jobs"], values


async def claim(database: Database, *statements: Statement) -> list[ClaimedJob]:
    """Claim due jobs of every tenant with these claim statements.

    It takes one round trip, and another one to read the claimed jobs in the scopes of their
    tenants. A job that is not read then is due again when its claim ends.
    """
    claimed = await database.transact(ALL_TENANTS, *statements)
    rows = [row for rows in claimed for row in rows]
    details = {row["claim_id"]: row for row in await _read_claimed(database, rows)} if rows else {}
    return [ClaimedJob(**row, **_details(found)) for row in rows if (found := details.get(row["claim_id"]))]


async def _read_claimed(database: Database, claimed: Sequence[DictRow]) -> list[DictRow]:
    cursors = []
    async with database.pipelined(claimed[0]["tenant_id"]) as connection:
        for tenant_id, rows in _by_tenant(claimed).items():
            await switch_tenant(connection, tenant_id)
            values = {**_keys(tenant_id, rows), "claim_ids": [row["claim_id"] for row in rows]}
            cursors.append(await connection.execute(_SQL["read_claimed_jobs"], values))
    return [row for cursor in cursors for row in await cursor.fetchall()]


def _details(row: DictRow) -> dict[str, Any]:
    return {"arguments": row["arguments"], "traceparent": row["traceparent"]}


def _by_tenant(rows: Sequence[DictRow]) -> dict[str, list[DictRow]]:
    """Return the rows of each tenant, in their order."""
    owners: dict[str, list[DictRow]] = {}
    for row in rows:
        owners.setdefault(row["tenant_id"], []).append(row)
    return owners


def _keys(tenant_id: str, rows: Sequence[DictRow]) -> dict[str, Any]:
    return {
        "tenant_id": tenant_id,
        "kinds": [row["kind"] for row in rows],
        "keys": [row["key"] for row in rows],
    }


async def complete(database: Database, job: ClaimedJob, at_end: AtEnd | None = None) -> None:
    """Delete a job that is done."""
    if at_end is None:
        await database.transact(job.tenant_id, (_SQL["complete_job"], _claimed(job)))
        return
    async with database.adding(job.tenant_id) as connection:
        if (await connection.execute(_SQL["complete_job"], _claimed(job))).rowcount:
            await at_end(connection, job, False)


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """Why an attempt failed, the pause until the next one, and when the job is given up."""

    error: str
    pause: timedelta
    is_last: bool
    kept_for: timedelta | None


async def retry(
    database: Database, job: ClaimedJob, failed: AttemptFailure, at_end: AtEnd | None = None
) -> bool:
    """Record a failed attempt. Return whether the job is dead now."""
    values = {
        **_claimed(job),
        "error": failed.error,
        "pause": failed.pause,
        "is_last": failed.is_last,
        "kept_for": failed.kept_for,
    }
    if at_end is None:
        (rows,) = await database.transact(job.tenant_id, (_SQL["retry_job"], values))
        return bool(rows and rows[0]["is_dead"])
    async with database.adding(job.tenant_id) as connection:
        row = await (await connection.execute(_SQL["retry_job"], values)).fetchone()
        is_dead = row is not None and bool(row["is_dead"])
        if is_dead:
            await at_end(connection, job, True)
        return is_dead


async def run_again(database: Database, job: ClaimedJob, again: Again) -> None:
    """Make the job due again, as the handler said."""
    arguments = None if again.arguments is None else Jsonb(dict(again.arguments))
    values = {**_claimed(job), "pause": again.after, "error": again.reason, "arguments": arguments}
    await database.transact(job.tenant_id, (_SQL["run_job_again"], values))


async def return_claimed(database: Database, job: ClaimedJob) -> None:
    """Give an interrupted job to another worker."""
    await database.transact(job.tenant_id, (_SQL["return_job"], _claimed(job)))


async def list_jobs(
    database: Database,
    tenant_id: str,
    *,
    kind: str = "",
    dead: bool = False,
    after: JobId | None = None,
    limit: int,
) -> list[StoredJob]:
    """Return a page of the jobs of a tenant, or of every tenant, in the order of their ids."""
    after_tenant, after_kind, after_key = after or ("", "", "")
    values = {
        "kind": kind or None,
        "limit": limit,
        "after_tenant": after_tenant,
        "after_kind": after_kind,
        "after_key": after_key,
    }
    statement = _SQL["list_dead_jobs" if dead else "list_jobs"]
    jobs: list[StoredJob] = []
    async with database.transaction(tenant_id) as connection:
        # A listed job must not be gone when it is read: the page would look like the last one.
        await connection.execute("set transaction isolation level repeatable read")
        listed = await (await connection.execute(statement, values)).fetchall()
        for owner, rows in _by_tenant(listed).items():
            await switch_tenant(connection, owner)
            cursor = await connection.execute(_SQL["get_jobs"], _keys(owner, rows))
            jobs += [StoredJob(**row) for row in await cursor.fetchall()]
    return jobs


async def retry_now(connection: Connection, job_id: JobId) -> bool:
    """Make a waiting or dead job due now, with all its attempts. Return False if there is none."""
    return await _found(connection, "retry_dead_job", job_id)


async def discard(connection: Connection, job_id: JobId) -> bool:
    """Delete a dead job. Return False if there is none."""
    return await _found(connection, "discard_job", job_id)


async def exists(connection: Connection, job_id: JobId) -> bool:
    """Return whether there is such a job, dead or not."""
    return await _found(connection, "get_job_state", job_id)


async def count_jobs(database: Database) -> dict[str, JobCounts]:
    """Return the number of jobs of every tenant by kind."""
    (rows,) = await database.transact(ALL_TENANTS, (_SQL["count_jobs"], {}))
    counts: dict[str, JobCounts] = {}
    for row in rows:
        counts[row["kind"]] = _add(counts.get(row["kind"], JobCounts()), row)
    return counts


def _add(counts: JobCounts, row: DictRow) -> JobCounts:
    return JobCounts(
        waiting=counts.waiting + row["waiting"],
        working=counts.working + row["working"],
        dead=counts.dead + row["dead"],
        oldest_seconds=max(counts.oldest_seconds, row["oldest_seconds"]),
    )


async def _found(connection: Connection, statement: str, job_id: JobId) -> bool:
    return await (await connection.execute(_SQL[statement], _key(job_id))).fetchone() is not None


def _key(job_id: JobId) -> dict[str, str]:
    tenant_id, kind, key = job_id
    return {"tenant_id": tenant_id, "kind": kind, "key": key}


def _claimed(job: ClaimedJob) -> dict[str, Any]:
    return {"tenant_id": job.tenant_id, "kind": job.kind, "key": job.key, "claim_id": job.claim_id}
