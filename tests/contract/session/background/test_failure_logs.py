"""Failures of background work are logged: the work, the tenant, the error and the next try."""

from typing import Any

import pytest
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_session.app import make_job_worker
from spawnmesh_session.domain.job_kinds import DELETE_SESSION, FOLLOW_UPS
from structlog.testing import capture_logs

from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.worker import components_of, job_worker_of, make_due

NOBODY = "127.0.0.1:1"


@pytest.fixture
async def closed(open_mesh: OpenMesh) -> Any:
    """A session that was killed, whose peers are away."""
    async with open_mesh() as mesh:
        await mesh.create_tenant()
        session = await mesh.spawn(attachments=[])
        await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session.session_id))
        return mesh, session.session_id


def without_peers(mesh: Mesh) -> Any:
    return mesh.settings.model_copy(
        update={"hook_target": NOBODY, "transcript_target": NOBODY, "log_level": "warning"}
    )


async def test_a_job_that_fails(closed: tuple[Mesh, str]) -> None:
    mesh, session_id = closed
    async with job_worker_of(without_peers(mesh)) as worker:
        with capture_logs() as logged:
            await worker.run_due(*FOLLOW_UPS)
    failed = [event for event in logged if event["event"] == "job_failed" and event["key"] == session_id]
    # On a busy machine a second attempt may be due before the worker has tried every job.
    logs = [event for event in failed if event["attempt"] == 1]
    assert {event["job"] for event in logs} >= {"publish_session_end"}
    for event in logs:
        assert event["tenant"] == mesh.tenant
        assert event["error"] in ("DEPENDENCY_UNAVAILABLE (hook)", "DEPENDENCY_UNAVAILABLE (transcript)")
        assert 1.5 <= event["again_in_seconds"] <= 2


async def test_a_deletion_that_a_peer_holds_up(closed: tuple[Mesh, str], postgres: Any) -> None:
    mesh, session_id = closed
    async with components_of(without_peers(mesh)) as components:
        await components.deleter.delete(mesh.tenant, session_id)
        await make_due(postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?"), mesh.tenant)
        with capture_logs() as logged:
            await make_job_worker(components, mesh.settings).run_due(DELETE_SESSION)
    logs = [event for event in logged if event.get("tenant") == mesh.tenant]
    assert [(event["event"], event["error"]) for event in logs] == [
        ("job_failed", "DEPENDENCY_UNAVAILABLE (transcript)")
    ]
