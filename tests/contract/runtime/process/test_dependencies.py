"""A process reports whether it can use what it needs, and stays ready if it cannot."""

import asyncio
from typing import Any
from urllib.request import urlopen

import grpc.aio
import pytest
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from spawnmesh_core.dependency_watch import DependencyFault
from spawnmesh_runtime.peers import open_peer
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.server import build_server
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.waiting import eventually

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def status_at(target: str, name: str) -> int:
    async with grpc.aio.insecure_channel(target) as channel:
        request = health_pb2.HealthCheckRequest(service=name)
        return int((await health_pb2_grpc.HealthStub(channel).Check(request)).status)


async def measured(process: Process) -> float:
    def fetch() -> list[str]:
        answer = urlopen(f"http://127.0.0.1:{process.metrics.port}/metrics").read().decode()
        return [line for line in answer.splitlines() if line.startswith("spawnmesh_dependency_up{")]

    (line,) = await asyncio.to_thread(fetch)
    assert 'dependency="transcript"' in line
    return float(line.rpartition(" ")[2])


@pytest.fixture(autouse=True)
def _logs_as_before() -> Any:
    yield
    structlog.reset_defaults()


async def test_a_peer_that_goes_and_returns_is_reported_and_leaves_the_process_ready(
    keys: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    peer, said = grpc.aio.server(), health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(said, peer)
    target = f"127.0.0.1:{peer.add_insecure_port('127.0.0.1:0')}"
    await peer.start()
    settings = ProcessSettings(metrics_listen="127.0.0.1:0", jwks_file=keys.jwks_file)
    async with start_process("hook", settings) as process, open_peer(process, "transcript", target):
        server = build_server(process)
        own = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        async with process.dependencies.periodic():
            for is_up in (True, False, True):
                await said.set("", SERVING if is_up else NOT_SERVING)
                await eventually(lambda is_up=is_up: process.dependencies.statuses[0].is_up is is_up)
                expected = SERVING if is_up else NOT_SERVING
                await eventually(lambda wanted=expected: _is(own, "transcript", wanted))
                assert await status_at(own, "") == SERVING
                assert await measured(process) == is_up
        (status,) = process.dependencies.statuses
        assert status.last_fault is DependencyFault.NOT_SERVING
        await peer.stop(None)
        (status,) = await process.dependencies.look()
        assert (status.is_up, status.last_fault) == (False, DependencyFault.UNREACHABLE)
        await server.stop(None)
    logged = [line for line in capsys.readouterr().out.splitlines() if '"dependency_' in line]
    assert [("dependency_up" in line, '"transcript"' in line) for line in logged] == [
        (False, True),
        (True, True),
        (False, True),
    ]
    assert '"fault":"NOT_SERVING"' in logged[0].replace(": ", ":")


async def test_a_service_is_up_while_one_of_its_replicas_serves(keys: Any) -> None:
    servers = []
    for status in (SERVING, NOT_SERVING):
        server, said = grpc.aio.server(), health.aio.HealthServicer()  # type: ignore[attr-defined]
        health_pb2_grpc.add_HealthServicer_to_server(said, server)
        await said.set("", status)
        servers.append((server, f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"))
        await server.start()
    target = "ipv4:" + ",".join(address for _, address in servers)
    async with start_process("hook", ProcessSettings()) as process, open_peer(process, "transcript", target):
        # Once the channel has a connection to it, one of two checks is made there.
        await eventually(lambda: _is_up(process))
        assert [(await process.dependencies.look())[0].is_up for _ in range(4)] == [True] * 4
    for server, _ in servers:
        await server.stop(None)


async def _is_up(process: Process) -> bool:
    (status,) = await process.dependencies.look()
    return status.is_up is True


async def _is(target: str, name: str, wanted: int) -> bool:
    return await status_at(target, name) == wanted
