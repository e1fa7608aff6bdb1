"""JobService: operators list, retry and discard the jobs of the session service."""

from typing import Any

import pytest
from spawnmesh.jobs.v1 import job_pb2
from spawnmesh.jobs.v1 import job_service_pb2 as pb
from spawnmesh.jobs.v1.job_service_pb2_grpc import JobServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token

from tests.support.serving import client_tokens
from tests.support.session.harness import Mesh
from tests.support.session.tables import rows, superuser

KIND = "release_attachments"
_INSERT = """
insert into session.jobs (tenant_id, kind, key, due_time, claim_id, attempt_count, dead_time, last_error)
values (%(tenant)s, %(kind)s, 'ses_dead', now(), null, 9, now(), 'DEPENDENCY_UNAVAILABLE (attachment-blob)'),
       (%(tenant)s, %(kind)s, 'ses_later', now() + interval '1 day', null, 1, null, ''),
       (%(tenant)s, %(kind)s, 'ses_now', now() + interval '1 day', gen_random_uuid(), 1, null, '')
"""


@pytest.fixture
async def stub(mesh: Mesh, postgres: Any) -> Any:
    async with superuser(postgres) as link:
        await link.execute(_INSERT, {"tenant": mesh.tenant, "kind": KIND})
    return JobServiceStub(mesh.peer.channel)


async def ask(mesh: Mesh, call: Any, request: Any) -> Any:
    with use_token(client_tokens(mesh.keys).admin_token("operator", 600)):
        return await mesh.peer.unary(call, request, timeout_seconds=60.0)


async def reason_of(call: Any) -> Reason:
    with pytest.raises(MeshError) as caught:
        await call
    return caught.value.reason


async def test_ListJobs__pages_states_and_filters(mesh: Mesh, stub: Any) -> None:
    request = pb.ListJobsRequest(tenant_id=mesh.tenant, kind=KIND, page_size=2)
    first = await ask(mesh, stub.ListJobs, request)
    request.page_token = first.next_page_token
    second = await ask(mesh, stub.ListJobs, request)
    assert [(job.key, job.state) for job in (*first.jobs, *second.jobs)] == [
        ("ses_dead", job_pb2.JOB_STATE_DEAD),
        ("ses_later", job_pb2.JOB_STATE_WAITING),
        ("ses_now", job_pb2.JOB_STATE_WORKING),
    ]
    assert second.next_page_token == ""
    dead = first.jobs[0]
    assert (dead.attempt_count, dead.last_error) == (9, "DEPENDENCY_UNAVAILABLE (attachment-blob)")
    assert dead.HasField("dead_time")
    everywhere = await ask(mesh, stub.ListJobs, pb.ListJobsRequest(dead=True, page_size=500))
    assert [job.key for job in everywhere.jobs if job.tenant_id == mesh.tenant] == ["ses_dead"]
    none = await ask(mesh, stub.ListJobs, pb.ListJobsRequest(tenant_id="t-nobody"))
    assert list(none.jobs) == []


async def test_RetryJob__makes_a_dead_job_due_and_leaves_one_at_work(
    mesh: Mesh, stub: Any, postgres: Any
) -> None:
    def retry(key: str) -> Any:
        request = pb.RetryJobRequest(tenant_id=mesh.tenant, kind=KIND, key=key)
        return ask(mesh, stub.RetryJob, request)

    await retry("ses_dead")
    query = "select due_time <= now() as due, dead_time, attempt_count from session.jobs where tenant_id = %s and key = %s"
    assert await rows(postgres, query, mesh.tenant, "ses_dead") == [
        {"due": True, "dead_time": None, "attempt_count": 0}
    ]
    assert await reason_of(retry("ses_now")) is Reason.CONFLICT
    assert await reason_of(retry("ses_none")) is Reason.NOT_FOUND


async def test_DiscardJob__deletes_a_dead_job_alone(mesh: Mesh, stub: Any) -> None:
    def discard(key: str) -> Any:
        request = pb.DiscardJobRequest(tenant_id=mesh.tenant, kind=KIND, key=key)
        return ask(mesh, stub.DiscardJob, request)

    await discard("ses_dead")
    assert await reason_of(discard("ses_dead")) is Reason.NOT_FOUND
    assert await reason_of(discard("ses_later")) is Reason.CONFLICT


async def test_jobs_are_for_operators_and_tokens_are_those_of_pages(mesh: Mesh, stub: Any) -> None:
    request = pb.ListJobsRequest(tenant_id=mesh.tenant)
    assert await reason_of(mesh.client(stub.ListJobs, request)) is Reason.CALLER_NOT_ALLOWED
    for wrong in (pb.ListJobsRequest(page_token="x"), pb.ListJobsRequest(tenant_id="*")):
        assert await reason_of(ask(mesh, stub.ListJobs, wrong)) is Reason.INVALID_REQUEST
