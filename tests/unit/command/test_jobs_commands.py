"""Commands that list, retry and discard background jobs."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.jobs.v1 import job_pb2
from spawnmesh.jobs.v1 import job_service_pb2 as pb
from spawnmesh.jobs.v1.job_service_pb2_grpc import JobServiceServicer, add_JobServiceServicer_to_server
from spawnmesh_core.errors import not_found
from spawnmesh_runtime.server import MeshServer

from tests.support.command.fake_mesh import (
    FakeMesh,
    FakeSessions,
    FakeTranscript,
    served,
    unset,
    write_mesh_file,
)
from tests.support.command.tenants import FakeTenants

__all__ = ["unset"]


def job(number: int) -> job_pb2.Job:
    return job_pb2.Job(
        tenant_id="acme",
        kind="publish_run_end",
        key=f"run_{number}",
        state=job_pb2.JOB_STATE_DEAD,
        attempt_count=9,
        last_error="DEPENDENCY_UNAVAILABLE (hook)",
    )


@dataclass
class FakeJobs(JobServiceServicer):
    """Two pages of one job each; records the requests."""

    requests: list[Any] = field(default_factory=list)

    async def ListJobs(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        number = int(request.page_token or 1)
        return pb.ListJobsResponse(jobs=[job(number)], next_page_token="2" if number == 1 else "")

    async def RetryJob(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        if request.key == "gone":
            raise not_found("job", "publish_run_end gone")
        return pb.RetryJobResponse()

    async def DiscardJob(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        return pb.DiscardJobResponse()


@pytest.fixture
async def jobs() -> FakeJobs:
    return FakeJobs()


@pytest.fixture
async def mesh(keys: Path, tmp_path: Path, jobs: FakeJobs) -> AsyncIterator[FakeMesh]:
    def add(server: MeshServer) -> None:
        add_JobServiceServicer_to_server(jobs, server)

    async with served("session", keys, add) as target:
        targets = {"session": target}
        write_mesh_file(tmp_path, keys, targets)
        yield FakeMesh(tmp_path, FakeSessions(), FakeTenants(), FakeTranscript(), targets)


async def test_jobs_of_all_pages_are_listed(mesh: FakeMesh, jobs: FakeJobs) -> None:
    shown = await mesh.run("jobs", "list", "--tenant", "acme", "--kind", "publish_run_end", "--dead")
    for_programs = await mesh.run("jobs", "list", "--json")

    header, first, second = (line.split() for line in shown.stdout.splitlines())
    assert header == ["tenant", "kind", "key", "state", "attempts", "due", "last", "error"]
    assert first[:5] == ["acme", "publish_run_end", "run_1", "dead", "9"]
    assert second[2] == "run_2"
    assert second[-2:] == ["DEPENDENCY_UNAVAILABLE", "(hook)"]
    asked = jobs.requests[0]
    assert (asked.tenant_id, asked.kind, asked.dead) == ("acme", "publish_run_end", True)
    assert [one["key"] for one in json.loads(for_programs.stdout)["jobs"]] == ["run_1", "run_2"]


async def test_job_is_retried_and_discarded_by_its_tenant_kind_and_key(
    mesh: FakeMesh, jobs: FakeJobs
) -> None:
    retried = await mesh.run("jobs", "retry", "acme", "publish_run_end", "run_1")
    discarded = await mesh.run("jobs", "discard", "acme", "publish_run_end", "run_1", "--json")
    refused = await mesh.run("jobs", "retry", "acme", "publish_run_end", "gone")

    assert (retried.exit_code, discarded.exit_code, refused.exit_code) == (0, 0, 1)
    assert "there is no job" in refused.stderr
    assert [(type(one).__name__, one.tenant_id, one.kind, one.key) for one in jobs.requests] == [
        ("RetryJobRequest", "acme", "publish_run_end", "run_1"),
        ("DiscardJobRequest", "acme", "publish_run_end", "run_1"),
        ("RetryJobRequest", "acme", "publish_run_end", "gone"),
    ]
