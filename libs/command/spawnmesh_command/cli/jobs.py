"""Commands for the background jobs of services: list, retry and discard them."""

from collections.abc import Sequence
from datetime import UTC
from typing import Annotated

import typer
from spawnmesh.jobs.v1 import job_pb2, job_service_pb2
from spawnmesh.jobs.v1.job_service_pb2_grpc import JobServiceStub
from spawnmesh_client.wire import WireMesh

from spawnmesh_command.cli.confirmation import Yes, confirm
from spawnmesh_command.cli.run import AsJson, call_rpc, with_mesh
from spawnmesh_command.cli.show import print_json, print_table, value_of

_PAGE_SIZE = 500
Service = Annotated[str, typer.Option(help="The service that has the jobs.")]
TenantId = Annotated[str, typer.Argument(metavar="TENANT_ID", help="The tenant of the job.")]
Kind = Annotated[str, typer.Argument(metavar="KIND", help="The kind of the job.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key of the job.")]


def add_commands(app: typer.Typer) -> None:
    """Add `jobs list|retry|discard`."""
    jobs = typer.Typer(no_args_is_help=True, help="Background jobs, for operators.")
    jobs.command("list")(list_jobs)
    jobs.command()(retry)
    jobs.command()(discard)
    app.add_typer(jobs, name="jobs")


def list_jobs(
    context: typer.Context,
    tenant: Annotated[str, typer.Option(metavar="TENANT_ID", help="Only jobs of this tenant.")] = "",
    kind: Annotated[str, typer.Option(help="Only jobs of this kind.")] = "",
    dead: Annotated[bool, typer.Option("--dead", help="Only jobs that were given up.")] = False,
    service: Service = "session",
    as_json: AsJson = False,
) -> None:
    """List the jobs that are left, by tenant, kind and key."""

    async def body(mesh: WireMesh) -> Sequence[job_pb2.Job]:
        peer = mesh.service(service)
        stub = JobServiceStub(peer.channel)
        request = job_service_pb2.ListJobsRequest(
            tenant_id=tenant, kind=kind, dead=dead, page_size=_PAGE_SIZE
        )
        jobs: list[job_pb2.Job] = []
        while True:
            page = await peer.unary(stub.ListJobs, request)
            jobs += page.jobs
            if not page.next_page_token:
                return jobs
            request.page_token = page.next_page_token

    listed = with_mesh(context, body, as_json=as_json, admin=True)
    if as_json:
        print_json({"jobs": [value_of(job) for job in listed]})
    else:
        print_table(("tenant", "kind", "key", "state", "attempts", "due", "last error"), map(_row, listed))


def retry(
    context: typer.Context,
    tenant_id: TenantId,
    kind: Kind,
    key: Key,
    service: Service = "session",
    as_json: AsJson = False,
) -> None:
    """Make a job due now, with all its attempts."""
    request = job_service_pb2.RetryJobRequest(tenant_id=tenant_id, kind=kind, key=key)
    call_rpc(service, JobServiceStub, context, "RetryJob", request, as_json=as_json, admin=True)
    if as_json:
        print_json({})


def discard(
    context: typer.Context,
    tenant_id: TenantId,
    kind: Kind,
    key: Key,
    service: Service = "session",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a dead job. What it was for is not done."""
    confirm(f"Discard the job {kind} {key} of {tenant_id}? It is not done any more.", yes=yes)
    request = job_service_pb2.DiscardJobRequest(tenant_id=tenant_id, kind=kind, key=key)
    call_rpc(service, JobServiceStub, context, "DiscardJob", request, as_json=as_json, admin=True)
    if as_json:
        print_json({})


def _row(job: job_pb2.Job) -> tuple[str, ...]:
    state = job_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_").lower()
    due = job.due_time.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M:%S") if job.HasField("due_time") else "held"
    return job.tenant_id, job.kind, job.key, state, str(job.attempt_count), due, job.last_error
