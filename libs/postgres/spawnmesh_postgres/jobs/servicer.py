"""JobService of every service with background jobs."""

from collections.abc import Awaitable, Callable
from typing import Any

from grpc import aio
from spawnmesh.jobs.v1 import job_pb2, job_service_pb2
from spawnmesh.jobs.v1.job_service_pb2_grpc import JobServiceServicer, add_JobServiceServicer_to_server
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_core.errors import MeshError, invalid, not_found
from spawnmesh_core.ids import TENANT_ID
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_core.reasons import Reason

from spawnmesh_postgres.database import ALL_TENANTS, Connection, Database
from spawnmesh_postgres.jobs import store
from spawnmesh_postgres.jobs.store import JobId, StoredJob

_DEFAULT_PAGE_SIZE = 50

Context = aio.ServicerContext[Any, Any]
Change = Callable[[Connection, JobId], Awaitable[bool]]


class JobServicer(JobServiceServicer):
    """The servicer of JobService, on the jobs of one service."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ListJobs(
        self, request: job_service_pb2.ListJobsRequest, context: Context
    ) -> job_service_pb2.ListJobsResponse:
        scope = _tenant_of(request.tenant_id) if request.tenant_id else ALL_TENANTS
        size = request.page_size or _DEFAULT_PAGE_SIZE
        jobs = await store.list_jobs(
            self._database,
            scope,
            kind=request.kind,
            dead=request.dead,
            after=position_of(request, (str, str, str)),
            limit=size + 1,
        )
        page = jobs[:size]
        return job_service_pb2.ListJobsResponse(
            jobs=map(_render, page),
            next_page_token=_token_after(page[-1], request) if len(jobs) > size else "",
        )

    async def RetryJob(
        self, request: job_service_pb2.RetryJobRequest, context: Context
    ) -> job_service_pb2.RetryJobResponse:
        job_id = _tenant_of(request.tenant_id), request.kind, request.key
        await self._change(store.retry_now, job_id, "a worker has this job; look again when it has ended")
        return job_service_pb2.RetryJobResponse()

    async def DiscardJob(
        self, request: job_service_pb2.DiscardJobRequest, context: Context
    ) -> job_service_pb2.DiscardJobResponse:
        job_id = _tenant_of(request.tenant_id), request.kind, request.key
        await self._change(store.discard, job_id, "this job is not dead; only a dead job can be discarded")
        return job_service_pb2.DiscardJobResponse()

    async def _change(self, change: Change, job_id: JobId, refusal: str) -> None:
        tenant_id, kind, key = job_id
        async with self._database.transaction(tenant_id) as connection:
            if await change(connection, job_id):
                return
            if not await store.exists(connection, job_id):
                raise not_found("job", f"{kind} {key}")
        raise MeshError(Reason.CONFLICT, refusal, facts={"tenant_id": tenant_id, "kind": kind, "key": key})


def add_jobs(server: aio.Server, database: Database) -> None:
    """Add the JobService of a service with the table of jobs."""
    add_JobServiceServicer_to_server(JobServicer(database), server)


def _tenant_of(tenant_id: str) -> str:
    if TENANT_ID.fullmatch(tenant_id) is None:
        raise invalid("tenant_id", "is no tenant id")
    return tenant_id


def _token_after(job: StoredJob, request: job_service_pb2.ListJobsRequest) -> str:
    return page_token([job.tenant_id, job.kind, job.key], request)


def _render(job: StoredJob) -> job_pb2.Job:
    return job_pb2.Job(
        tenant_id=job.tenant_id,
        kind=job.kind,
        key=job.key,
        state=_state_of(job),
        attempt_count=job.attempt_count,
        last_error=job.last_error,
        traceparent=job.traceparent,
        create_time=timestamp_of(job.create_time),
        due_time=timestamp_of(job.due_time),
        dead_time=timestamp_of(job.dead_time),
    )


def _state_of(job: StoredJob) -> "job_pb2.JobState.ValueType":
    if job.dead_time is not None:
        return job_pb2.JOB_STATE_DEAD
    return job_pb2.JOB_STATE_WORKING if job.is_working else job_pb2.JOB_STATE_WAITING
