"""Metrics of runs, calls and connections of the session service."""

import asyncio
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_calls.wire_reasons import reason_number
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.ports import free_ports

from tests.support.session.harness import Mesh, OpenMesh

SUBAGENT = 'spawnmesh_session_runtime="subagent"'
CLAIMS = f'spawnmesh_session_claims_total{{spawnmesh_session_claim="%s",{SUBAGENT}}}'


async def test_runs_calls_and_connections_are_measured_and_name_no_tenant(open_mesh: OpenMesh) -> None:
    (port,) = free_ports(1)
    async with open_mesh(metrics_listen=f"127.0.0.1:{port}") as mesh:
        await mesh.create_tenant()
        for reason in (Reason.MODEL_REFUSED, Reason.RUNNER_ERROR):
            await _fail(mesh, reason)
        killed = await mesh.spawn()
        await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=killed.session_id))
        with pytest.raises(MeshError):
            await mesh.get("ses_00000000000000000000000000")
        samples = await asyncio.to_thread(_samples, port)

    ended = 'spawnmesh_session_runs_ended_total{error_type="%s",spawnmesh_session_run_state="%s"}'
    assert samples[ended % ("MODEL_REFUSED", "failed")] == 1
    assert samples[ended % ("RUNNER_ERROR", "failed")] == 1
    assert samples[ended % ("KILLED", "killed")] == 1
    assert samples[CLAIMS % "first"] >= 2
    assert samples[f"spawnmesh_session_queue_wait_seconds_count{{{SUBAGENT}}}"] >= 2
    calls = 'rpc_server_call_duration_seconds_count{error_type="%s",rpc_method="spawnmesh.session.v1.SessionService/%s"'
    calls += ',rpc_response_status_code="%s",rpc_system_name="grpc"}'
    assert samples[calls % ("", "SpawnSession", "OK")] == 3
    assert samples[calls % ("NOT_FOUND", "GetSession", "NOT_FOUND")] == 1
    pool = 'db_client_connection_pool_name="session"'
    assert samples[f"db_client_connection_wait_time_seconds_count{{{pool}}}"] > 3
    assert samples[f"db_client_connection_max{{{pool}}}"] == mesh.settings.database_max_connections
    assert samples['db_client_operation_duration_seconds_count{db_system_name="postgresql"}'] > 3
    assert not any(mesh.tenant in name for name in samples)


@pytest.mark.usefixtures("empty_queue")
async def test_only_a_run_whose_runner_was_lost_is_taken_over(open_mesh: OpenMesh) -> None:
    (port,) = free_ports(1)
    async with open_mesh(metrics_listen=f"127.0.0.1:{port}", lease_ttl_seconds=0.4) as mesh:
        await mesh.create_tenant()
        session = await mesh.spawn()
        await mesh.claim(session.session_id)
    async with open_mesh(metrics_listen=f"127.0.0.1:{port}") as patient:
        patient.tenant = mesh.tenant
        async with asyncio.timeout(60):
            released = 0
            while released < 4:
                for held in await patient.claim_any():
                    await patient.run(
                        held, patient.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch)
                    )
                    released += 1
        samples = await asyncio.to_thread(_samples, port)

    assert samples[CLAIMS % "takeover"] == 1
    assert samples[CLAIMS % "released"] == 3


async def test_methods_that_a_caller_invents_make_no_series(open_mesh: OpenMesh) -> None:
    (port,) = free_ports(1)
    async with open_mesh(metrics_listen=f"127.0.0.1:{port}") as mesh:
        for number in range(20):
            for service in ("spawnmesh.session.v1.SessionService", f"invented.v{number}.Service"):
                call: Any = mesh.peer.channel.unary_unary(f"/{service}/Invented{number}", bytes, bytes)
                with pytest.raises(MeshError) as refused:
                    await mesh.client(call, b"")
                error = refused.value.__context__
                assert isinstance(error, grpc.aio.AioRpcError)
                assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        samples = await asyncio.to_thread(_samples, port)

    assert [name for name in samples if "nvented" in name] == []


async def _fail(mesh: Mesh, reason: Reason) -> None:
    claimed = await mesh.claim((await mesh.spawn()).session_id)
    request = run_pb.FailRunRequest(epoch=claimed.run.epoch, reason=reason_number(reason), message="no")
    await mesh.run(claimed, mesh.runs.FailRun, request)


def _samples(port: int) -> dict[str, float]:
    lines = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")
    }
