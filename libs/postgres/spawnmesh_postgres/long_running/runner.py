"""The handler of the jobs that execute operations: it does steps, and records each of them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import psycopg
import structlog
from opentelemetry import trace
from psycopg_pool import PoolTimeout
from spawnmesh_calls.wire_errors import status_of
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import TRANSIENT_FACT, MeshError, error_label, is_transient
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.jobs import store as job_store
from spawnmesh_postgres.jobs.job import Again, BackoffPolicy, ClaimedJob, JobKind
from spawnmesh_postgres.long_running import store
from spawnmesh_postgres.long_running.operation import (
    KEPT_FOR,
    OperationType,
    Step,
    StoredOperation,
    Work,
)

_ATTEMPT_SECONDS = 20.0
"""After it the job goes back to the queue between two steps: other tenants have their turn."""
_TIMEOUT = timedelta(hours=1)  # Longer than any step: models and plugins take minutes.
_CLAIM_FOR = timedelta(seconds=30)
_EXTEND_SECONDS = 10.0
_PASSING = frozenset({Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED})
_PASSING_REASONS = frozenset({Reason.POOL_EXHAUSTED, Reason.RATE_LIMITED, Reason.STREAM_BROKEN})
_NO_PAUSE = timedelta(0)
_DELETE = "delete"
"""The argument of a job whose operation has ended: the job deletes it when it is due."""


@dataclass(frozen=True, slots=True)
class OperationRunner:
    """Executes the operations of one service: `concurrency` at once, and half as many of one
    tenant. `steps` has the step of each RPC that starts operations.

    Each step is recorded before the next one begins. A worker that lost its claim records nothing,
    because the count of steps has changed. No job becomes a dead letter: an operation that fails
    too often ends with its error.
    """

    service: str
    database: Database
    steps: Mapping[str, tuple[OperationType, Step]]
    concurrency: int = 4

    def kind(self) -> JobKind:
        """Return the kind of the jobs. A job whose worker is lost is claimed again after 30 s."""
        return JobKind(
            store.JOB_KIND,
            self.execute,
            self.concurrency,
            BackoffPolicy(),
            timeout=_TIMEOUT,
            claim_for=_CLAIM_FOR,
        )

    async def execute(self, job: ClaimedJob) -> Again | None:
        """Do steps for some seconds, or delete the operation some days after its end.

        Raises the error of a step that is tried again.
        """
        if job.arguments.get(_DELETE):
            await store.delete(self.database, job.tenant_id, job.key)
            return None
        until = monotonic_seconds() + _ATTEMPT_SECONDS
        async with self._extending(job):
            while (operation := await store.find(self.database, job.tenant_id, job.key)) is not None:
                if operation.end_time is not None:
                    return Again(KEPT_FOR, arguments={_DELETE: True})
                if monotonic_seconds() >= until:
                    return Again()
                if pause := await self._advance(job, operation):
                    return Again(pause)
        return None  # It was deleted.

    async def _advance(self, job: ClaimedJob, operation: StoredOperation) -> timedelta:
        """Do a step, or end the operation. Return the pause before the next step.

        Raises the error of a step that is tried again.
        """
        if operation.cancel_time is not None:
            await self._fail(job, operation, _cancelled())
            return _NO_PAUSE
        kind, step = self.steps[operation.method]
        # Its workers recorded no failure: they were lost.
        if job.attempt > kind.max_attempts and not kind.must_complete:
            await self._fail(job, operation, _workers_lost())
            return _NO_PAUSE
        try:
            progress = await step(_work(job.tenant_id, kind, operation))
        except Exception as error:
            raise_if_cancelled()
            refusal = _refusal(error)
            if kind.must_complete or (_passes(error, refusal) and job.attempt < kind.max_attempts):
                await store.note_retry(self.database, job.tenant_id, operation, refusal.reason.value)
                raise
            await self._fail(job, operation, refusal, defect=error)
            return _NO_PAUSE
        await store.advance(self.database, job.tenant_id, operation, progress)
        return progress.pause

    async def _fail(
        self,
        job: ClaimedJob,
        operation: StoredOperation,
        refusal: MeshError,
        *,
        defect: Exception | None = None,
    ) -> None:
        await store.fail(
            self.database, job.tenant_id, operation, status_of(refusal, f"{self.service}.spawnmesh")
        )
        is_defect = refusal.reason is Reason.INTERNAL
        structlog.get_logger().log(
            40 if is_defect else 20,
            "operation_failed",
            operation=operation.operation_id,
            method=operation.method,
            tenant=job.tenant_id,
            reason=refusal.reason,
            exc_info=defect if is_defect else None,
        )

    @asynccontextmanager
    async def _extending(self, job: ClaimedJob) -> AsyncIterator[None]:
        """Extend the claim during the block, however long a step takes."""
        task = asyncio.create_task(self._extend_forever(job), name=f"extend {job.key}")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _extend_forever(self, job: ClaimedJob) -> None:
        job_id = (job.tenant_id, job.kind, job.key)
        while True:
            await asyncio.sleep(_EXTEND_SECONDS)
            try:
                async with self.database.transaction(job.tenant_id) as connection:
                    await job_store.delay(connection, job_id, _CLAIM_FOR, claim_id=job.claim_id)
            except (psycopg.Error, PoolTimeout) as error:
                raise_if_cancelled()
                structlog.get_logger().warning("claim_not_extended", error=error_label(error))


def _work(tenant_id: str, kind: OperationType, operation: StoredOperation) -> Work:
    return Work(
        tenant_id,
        operation.subject,
        kind.request_class.FromString(operation.request),
        kind.response_class.FromString(operation.response or b""),
        operation.position,
    )


def _refusal(error: Exception) -> MeshError:
    """Return the refusal that clients see."""
    refusal = error if isinstance(error, MeshError) else translate(error)
    if refusal is None and isinstance(error, TimeoutError):
        refusal = MeshError(Reason.DEADLINE_EXCEEDED, "a step of the operation took too long")
    if refusal is not None and refusal.reason is not Reason.INTERNAL:
        return refusal
    context = trace.get_current_span().get_span_context()
    trace_id = trace.format_trace_id(context.trace_id) if context.is_valid else ""
    return MeshError(
        Reason.INTERNAL, f"internal error; trace {trace_id or 'unknown'}", facts={"trace_id": trace_id}
    )


def _passes(error: Exception, refusal: MeshError) -> bool:
    """Return whether the same step may succeed later: something is unavailable, or a transaction
    of the database conflicted with another one.
    """
    if TRANSIENT_FACT in refusal.facts:
        return is_transient(refusal)
    return (
        refusal.status in _PASSING
        or refusal.reason in _PASSING_REASONS
        or (refusal.reason is Reason.CONFLICT and not isinstance(error, MeshError))
    )


def _cancelled() -> MeshError:
    return MeshError(Reason.CANCELLED, "the operation was cancelled; what it has done stays done")


def _workers_lost() -> MeshError:
    return MeshError(
        Reason.INTERNAL, "every worker that executed the operation was lost; tell an operator of the mesh"
    )
