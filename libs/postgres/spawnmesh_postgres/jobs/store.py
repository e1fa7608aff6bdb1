"""The table of jobs.

A function that ends an attempt does nothing if the worker has lost its claim meanwhile. In the
scope of every tenant, ids and times of jobs are seen alone: what is done for a job, and what is
read of it beside them, happens in the scope of its tenant.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, tuple_row
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

    It takes one transaction and one round trip, and another one to read the claimed jobs in the
    scopes of their tenants.
    """
    async with database.pipelined(ALL_TENANTS) as connection:
        cursors = [await connection.execute(*statement) for statement in statements]
        claims = [_JobClaim(**row) for cursor in cursors for row in await cursor.fetchall()]
        details = {one.claim_id: one for one in await _read_details(connection, claims)}
    return [_claimed_job(claim, found) for claim in claims if (found := details.get(claim.claim_id))]


@dataclass(frozen=True, slots=True)
class _JobClaim:
    """The part of a claimed job that is seen in the scope of every tenant."""

    tenant_id: str
    kind: str
    key: str
    claim_id: UUID
    attempt: int


@dataclass(frozen=True, slots=True)
class _JobDetails:
    """The part of a claimed job that is read in the scope of its tenant."""

    claim_id: UUID
    arguments: dict[str, Any]
    traceparent: str


async def _read_details(connection: Connection, claims: Sequence[_JobClaim]) -> list[_JobDetails]:
    cursors = []
    claim_ids = [claim.claim_id for claim in claims]
    for tenant_id, ids in _by_tenant((claim.tenant_id, claim.kind, claim.key) for claim in claims).items():
        await switch_tenant(connection, tenant_id)
        cursor = connection.cursor(row_factory=class_row(_JobDetails))
        values = {**_keys(tenant_id, ids), "claim_ids": claim_ids}
        cursors.append(await cursor.execute(_SQL["read_claimed_jobs"], values))
    return [details for cursor in cursors for details in await cursor.fetchall()]


def _claimed_job(claim: _JobClaim, details: _JobDetails) -> ClaimedJob:
    return ClaimedJob(
        tenant_id=claim.tenant_id,
        kind=claim.kind,
        key=claim.key,
        claim_id=claim.claim_id,
        attempt=claim.attempt,
        arguments=details.arguments,
        traceparent=details.traceparent,
    )


def _by_tenant(ids: Iterable[JobId]) -> dict[str, list[JobId]]:
    """Return the ids of each tenant's jobs, in their order."""
    owners: dict[str, list[JobId]] = {}
    for job_id in ids:
        owners.setdefault(job_id[0], []).append(job_id)
    return owners


def _keys(tenant_id: str, ids: Sequence[JobId]) -> dict[str, Any]:
    return {
        "tenant_id": tenant_id,
        "kinds": [kind for _, kind, _ in ids],
        "keys": [key for _, _, key in ids],
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
    """The error of a failed attempt, the pause until the next one, and the end of attempts."""

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
        listed = connection.cursor(row_factory=tuple_row)
        await listed.execute(statement, values)
        for owner, ids in _by_tenant(await listed.fetchall()).items():
            await switch_tenant(connection, owner)
            cursor = connection.cursor(row_factory=class_row(StoredJob))
            await cursor.execute(_SQL["get_jobs"], _keys(owner, ids))
            jobs += await cursor.fetchall()
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
        counted = JobCounts(row["waiting"], row["working"], row["dead"], row["oldest_seconds"])
        counts[row["kind"]] = _sum(counts.get(row["kind"], JobCounts()), counted)
    return counts


def _sum(first: JobCounts, second: JobCounts) -> JobCounts:
    return JobCounts(
        waiting=first.waiting + second.waiting,
        working=first.working + second.working,
        dead=first.dead + second.dead,
        oldest_seconds=max(first.oldest_seconds, second.oldest_seconds),
    )


async def _found(connection: Connection, statement: str, job_id: JobId) -> bool:
    return await (await connection.execute(_SQL[statement], _key(job_id))).fetchone() is not None


def _key(job_id: JobId) -> dict[str, str]:
    tenant_id, kind, key = job_id
    return {"tenant_id": tenant_id, "kind": kind, "key": key}


def _claimed(job: ClaimedJob) -> dict[str, Any]:
    return {"tenant_id": job.tenant_id, "kind": job.kind, "key": job.key, "claim_id": job.claim_id}
