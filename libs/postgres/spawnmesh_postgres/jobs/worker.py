"""The worker of background jobs: it claims due jobs and calls the handlers of their kinds."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from time import monotonic

import psycopg
import structlog
from psycopg_pool import PoolTimeout
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.errors import error_label

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs import store
from spawnmesh_postgres.jobs.job import Again, ClaimedJob, JobKind
from spawnmesh_postgres.jobs.metrics import JobMetrics
from spawnmesh_postgres.jobs.store import ClaimQuota
from spawnmesh_postgres.listener import Listener, Subscription
from spawnmesh_postgres.pipelines import Statement

RunForTenant = Callable[[str, str, str, Callable[[], Awaitable[Again | None]]], Awaitable[Again | None]]
"""Calls the handler in the name of the tenant, in a span with a name that continues a trace:
`run(tenant_id, span_name, traceparent, handler)`."""

_POLL_SECONDS = 1.0  # A notification may be lost, and none is sent for a job that becomes due.
_MEASURE_SECONDS = 5.0
_LOST = "every worker that had it was lost"

Result = Again | Exception | None


class WorkersLost(Exception):
    """Workers claimed the job as often as it may be tried, and recorded nothing."""

    def __str__(self) -> str:
        return _LOST


class JobWorker:
    """Runs the jobs of these kinds. Several workers may run; each job is run at least once.

    After a cancellation, running jobs have the grace to end.
    """

    def __init__(
        self,
        database: Database,
        listener: Listener,
        kinds: Iterable[JobKind],
        run_for_tenant: RunForTenant,
        metrics: JobMetrics,
        *,
        grace_seconds: float,
    ) -> None:
        self._database = database
        self._listener = listener
        self._kinds = {kind.name: kind for kind in kinds}
        self._run_for_tenant = run_for_tenant
        self._metrics = metrics
        self._grace_seconds = grace_seconds
        self._running: dict[asyncio.Task[None], ClaimedJob] = {}

    async def run_jobs_forever(self) -> None:
        """Run jobs until cancelled. While the database is unavailable, keep trying.

        After a cancellation, running jobs have the grace to end; the others are returned to the
        queue.
        """
        with self._listener.subscription(store.CHANNEL, *self._kinds) as due:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._measure_forever(), name="measure jobs")
                poll_time = 0.0
                try:
                    while True:
                        kinds = due.take_payloads()
                        if (now := monotonic()) >= poll_time:
                            kinds, poll_time = set(self._kinds), now + _POLL_SECONDS
                        for job in await self._claim_or_log(kinds):
                            task = tasks.create_task(self._work_on(job), name=f"job {job.kind}")
                            self._running[task] = job
                            task.add_done_callback(partial(self._ended, due))
                        await due.wait(poll_time - monotonic())
                except asyncio.CancelledError:
                    if self._running:
                        await asyncio.wait(self._running, timeout=self._grace_seconds)
                    raise

    async def run_due(self, *kinds: str) -> int:
        """Run what is due of these kinds, or of all, until nothing is; return the number of
        attempts.
        """
        attempt_count = 0
        while jobs := await self._claim([self._kinds[name] for name in kinds or self._kinds]):
            attempt_count += len(jobs)
            await asyncio.gather(*map(self._work_on, jobs))
        return attempt_count

    async def measure(self) -> None:
        """Set the gauges."""
        self._metrics.measured(await store.count_jobs(self._database), self._kinds)

    def _ended(self, due: Subscription, task: asyncio.Task[None]) -> None:
        """Look for more if the worker may have left jobs because it was busy."""
        job = self._running[task]
        kind, busy = self._kinds[job.kind], self._busy(job.kind)
        if busy.total() >= kind.concurrency or busy[job.tenant_id] >= kind.share:
            due.wake(job.kind)
        del self._running[task]

    def _busy(self, kind: str) -> Counter[str]:
        return Counter(job.tenant_id for job in self._running.values() if job.kind == kind)

    async def _claim_or_log(self, kinds: Collection[str]) -> list[ClaimedJob]:
        try:
            return await self._claim([kind for name, kind in self._kinds.items() if name in kinds])
        except Exception as error:  # noqa: BLE001 - the next poll tries again.
            raise_if_cancelled()
            structlog.get_logger().warning("jobs_unread", error=error_label(error))
            return []

    async def _claim(self, kinds: Iterable[JobKind]) -> list[ClaimedJob]:
        statements = [statement for kind in kinds if (statement := self._claim_statement(kind)) is not None]
        return await store.claim(self._database, *statements) if statements else []

    def _claim_statement(self, kind: JobKind) -> Statement | None:
        busy = self._busy(kind.name)
        free = kind.concurrency - busy.total()
        if free <= 0:
            return None
        return store.claim_statement(kind.name, ClaimQuota(free, kind.share, busy), kind.claim_time)

    async def _work_on(self, job: ClaimedJob) -> None:
        """Make one attempt. If its result cannot be stored, the job is due when its claim ends."""
        log = structlog.get_logger().bind(job=job.kind, key=job.key, tenant=job.tenant_id)
        try:
            await self._record(job, await self._attempt(job))
        except asyncio.CancelledError:
            await self._return(job)
            raise
        except Exception as error:  # noqa: BLE001 - the job is tried again; the others go on.
            raise_if_cancelled()
            log.warning("job_unrecorded", attempt=job.attempt, error=error_label(error))

    async def _attempt(self, job: ClaimedJob) -> Result:
        """Call the handler. Return what it returned, or the error that it raised."""
        kind = self._kinds[job.kind]
        if kind.retry.is_last(job.attempt - 1):
            return WorkersLost()
        try:
            async with asyncio.timeout(kind.timeout.total_seconds()):
                return await self._run_for_tenant(
                    job.tenant_id, f"job {job.kind}", job.traceparent, partial(kind.handler, job)
                )
        except Exception as error:  # noqa: BLE001 - it is recorded, and the job tried again.
            raise_if_cancelled()
            return error

    async def _record(self, job: ClaimedJob, result: Result) -> None:
        if isinstance(result, Exception):
            await self._record_failure(job, result)
        elif result is None:
            await store.complete(self._database, job, self._kinds[job.kind].at_end)
            self._metrics.attempted(job.kind, "done")
        else:
            await store.run_again(self._database, job, result)
            self._metrics.attempted(job.kind, "again")

    async def _record_failure(self, job: ClaimedJob, error: Exception) -> None:
        kind = self._kinds[job.kind]
        policy = kind.retry
        label = _LOST if isinstance(error, WorkersLost) else error_label(error)
        pause = policy.pause_after(job.attempt, random.random())  # noqa: S311 - it spreads load.
        is_dead = await store.retry(
            self._database,
            job,
            store.AttemptFailure(label, pause, policy.is_last(job.attempt), policy.kept_for),
            kind.at_end,
        )
        self._metrics.attempted(job.kind, "dead" if is_dead else "failed")
        structlog.get_logger().warning(
            "job_dead" if is_dead else "job_failed",
            job=job.kind,
            key=job.key,
            tenant=job.tenant_id,
            attempt=job.attempt,
            error=label,
            again_in_seconds=None if is_dead else round(pause.total_seconds(), 1),
        )

    async def _return(self, job: ClaimedJob) -> None:
        """Give an interrupted job to another worker; if that fails, its claim ends by itself."""
        try:
            await store.return_claimed(self._database, job)
        except (psycopg.Error, PoolTimeout) as error:
            log = structlog.get_logger().bind(job=job.kind, key=job.key, tenant=job.tenant_id)
            log.warning("job_not_returned", error=error_label(error))

    async def _measure_forever(self) -> None:
        while True:
            try:
                await self.measure()
            except Exception as error:  # noqa: BLE001 - the next look tries again.
                raise_if_cancelled()
                structlog.get_logger().warning("jobs_not_counted", error=error_label(error))
            await asyncio.sleep(_MEASURE_SECONDS)
