"""One mesh without runners: only the tests work on its runs. Each file has two tenants of its own."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.stack import open_stack

from tests.support.patient_callers import patient_callers
from tests.support.security.every_rpc import SERVED_BY_PLUGINS, RunningMesh, channels_to, served_rpcs
from tests.support.security.raw_calls import METHODS
from tests.support.security.tenants import Filled, fill_tenant


def _quiet(_line: str) -> None:
    """Drop a line of progress."""


@pytest.fixture(scope="package")
async def running(fork_server: ForkServer) -> AsyncIterator[RunningMesh]:
    """Start every process but runners. A lease lasts as long as the tests."""
    with tempfile.TemporaryDirectory(prefix="spawnmesh-attacked-") as folder:
        variables = {"SESSION_LEASE_TTL_SECONDS": "3600"}
        async with (
            open_stack(
                Path(folder) / "data",
                _quiet,
                runner_count=0,
                environment=variables,
                execute=fork_server.execute,
            ) as stack,
            channels_to(stack.targets) as channels,
        ):
            rpcs = await served_rpcs(channels)
            served = {one.method.full_name for one in rpcs}
            assert served == {name for name in METHODS if not name.startswith(SERVED_BY_PLUGINS)}
            with patient_callers():
                yield RunningMesh(stack, channels, rpcs)


@pytest.fixture(scope="module")
async def attacker(running: RunningMesh) -> Filled:
    """The tenant that attacks."""
    return await fill_tenant(running.stack)


@pytest.fixture(scope="module")
async def victim(running: RunningMesh) -> Filled:
    """The tenant that is attacked."""
    return await fill_tenant(running.stack)
