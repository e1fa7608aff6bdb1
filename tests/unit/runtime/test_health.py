"""The health of a process, and its checks."""

import pytest
from grpc_health.v1 import health_pb2
from spawnmesh_runtime.health import Health

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def status(health: Health, name: str = "") -> int:
    return int((await health.servicer.Check(health_pb2.HealthCheckRequest(service=name), None)).status)


async def test_a_failed_check_makes_a_process_not_ready_until_it_passes() -> None:
    health = Health()
    await health.passed("disk")
    await health.ready()
    assert (await status(health), await status(health, "disk")) == (SERVING, SERVING)
    await health.failed("disk")
    await health.failed("other")
    assert (await status(health), await status(health, "disk")) == (NOT_SERVING, NOT_SERVING)
    await health.passed("disk")
    assert (await status(health), await status(health, "disk")) == (NOT_SERVING, SERVING)
    await health.passed("other")
    assert await status(health) == SERVING


@pytest.mark.parametrize("passes", [True, False])
async def test_a_check_does_not_make_a_process_ready_that_accepts_no_calls(passes: bool) -> None:
    health = Health()
    await (health.passed if passes else health.failed)("disk")
    assert await status(health) == NOT_SERVING
    await health.ready()
    await health.not_ready()
    await health.passed("disk")
    assert await status(health) == NOT_SERVING


async def test_a_dependency_has_a_state_and_leaves_the_process_ready() -> None:
    """Its replicas would all be taken out at once, and callers would get no reason."""
    health, mesh_port = Health(), Health()
    health.report_dependencies_to(mesh_port.servicer)
    await health.ready()
    for is_up, expected in ((True, SERVING), (False, NOT_SERVING)):
        await health.dependency("postgresql", is_up=is_up)
        assert await status(health, "postgresql") == expected
        assert await status(mesh_port, "postgresql") == expected
        assert await status(health) == SERVING
