"""The probe of containers: it succeeds for a process that serves, and for no other."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from spawnmesh_runtime.health_probe import main


@pytest.fixture
def served() -> Iterator[tuple[str, health.HealthServicer]]:
    """Serve health checks. Yield the address, and what decides on the answers."""
    servicer = health.HealthServicer()
    server = grpc.server(ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", servicer
    server.stop(None).wait()


def test_probe_succeeds_for_a_process_that_serves(served: tuple[str, health.HealthServicer]) -> None:
    address, servicer = served
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    main([address])


def test_probe_fails_for_a_process_that_does_not_serve_yet(served: tuple[str, health.HealthServicer]) -> None:
    address, servicer = served
    servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    with pytest.raises(SystemExit, match="does not serve"):
        main([address])


def test_probe_fails_without_a_process() -> None:
    with pytest.raises(SystemExit, match="does not serve"):
        main(["127.0.0.1:1"])
    with pytest.raises(SystemExit, match="usage"):
        main([])
