"""What comes to nothing behind a call is told in the log: which work, for whom, why, and when it is tried again."""

from typing import Any

import pytest
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_session.operations.sweep import Sweep
from structlog.testing import capture_logs

from tests.contract.session.harness import Mesh, OpenMesh
from tests.contract.session.worker import make_due, parts_of, sweep_of

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
    return mesh.settings.model_copy(update={"hook_target": NOBODY, "transcript_target": NOBODY, "log_level": "warning"})


async def test_a_job_that_fails(closed: tuple[Mesh, str]) -> None:
    mesh, session_id = closed
    async with parts_of(without_peers(mesh)) as parts, parts.job_app.open_async():
        with capture_logs() as logged:
            await parts.job_app.run_worker_async(wait=False, concurrency=4, install_signal_handlers=False)
    told = [event for event in logged if event["event"] == "job_failed" and event["session"] == session_id]
    assert {event["job"] for event in told} >= {"tell_session_end"}
    for event in told:
        assert event["tenant"] == mesh.tenant
        assert event["error"] in ("DEPENDENCY_UNAVAILABLE (hook)", "DEPENDENCY_UNAVAILABLE (transcript)")
        assert (event["attempt"], event["again_in_seconds"]) == (1, 2)


async def test_a_deletion_that_a_peer_holds_up(closed: tuple[Mesh, str], postgres: Any) -> None:
    mesh, session_id = closed
    async with parts_of(without_peers(mesh)) as parts:
        await parts.delete.run(mesh.tenant, session_id)
        await make_due(postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?"), mesh.tenant)
        sweep: Sweep = sweep_of(parts, mesh.settings)
        with capture_logs() as logged:
            await sweep.finish_deletions()
    told = [event for event in logged if event.get("tenant") == mesh.tenant]
    assert [(event["event"], event["error"]) for event in told] == [
        ("swept_in_vain", "DEPENDENCY_UNAVAILABLE (transcript)")
    ]
