"""One mesh for all tests of this directory. It starts with the first test that uses it."""

import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.members import scripted_model_member
from spawnmesh_devstack.models import scripted_config, scripted_environment
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.prepare import SCRIPTED_MODEL
from spawnmesh_devstack.stack import Stack, open_stack

from tests.support.mesh.mcp_page import configure
from tests.support.mesh.plain_http import ALLOWED_ORIGIN
from tests.support.model_router.provider import LoopbackProvider, open_loopback_provider
from tests.support.patient_callers import patient_callers
from tests.support.runner.sandboxes import sandbox_problem

_MEASURED = 24
"""Ports for the metrics of more processes than a mesh has."""
SIZE = {"context_window": 128_000, "max_output": 4096}


def _quiet(_line: str) -> None:
    """Drop a line of progress."""


@pytest.fixture(scope="package")
async def provider() -> AsyncIterator[LoopbackProvider]:
    """Serve the models of the provider `loopback`."""
    async with open_loopback_provider() as provider:
        yield provider


@pytest.fixture(scope="package")
async def stack(provider: LoopbackProvider, fork_server: ForkServer) -> AsyncIterator[Stack]:
    """Start every process of the mesh. A test that stops one starts it again.

    The primary model is the scripted one, beside it is `loopback/thinker`, and the runner has MCP
    servers. Traces have content if a tenant wants it. The data is not below pytest's directory, which each new run of pytest closes to the
    account of PostgreSQL.
    """
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="spawnmesh-mesh-") as folder:
        home = Path(folder)
        given = {
            **scripted_environment(),
            "LOOPBACK_KEY": "any",
            "MODEL_ROUTER_TRACE_CONTENT_MAX_BYTES": "65536",
            "RUNNER_TRACE_CONTENT_MAX_BYTES": "65536",
            "RUNNER_MCP_CONFIG_FILE": str(configure(home)),
            "RUNNER_UNSANDBOXED_STDIO_SERVERS": json.dumps(bool(sandbox_problem())),
        }
        async with open_stack(
            home / "data",
            _quiet,
            router_config=_with_loopback(scripted_config(port), provider),
            ports={SCRIPTED_MODEL: port},
            environment=given,
            execute=fork_server.execute,
            metrics_ports=iter(free_ports(_MEASURED)),
        ) as mesh:
            await mesh.start(scripted_model_member(port))
            with patient_callers():
                yield mesh


@pytest.fixture(scope="package")
async def gateway(stack: Stack) -> str:
    """Start the gateway of the mesh, and return its address."""
    return await stack.start_gateway(allowed_origins=(ALLOWED_ORIGIN,))


def _with_loopback(config: dict[str, Any], provider: LoopbackProvider) -> dict[str, Any]:
    """Add a model that is called through the Responses API and has thinking levels."""
    loopback = {"kind": "openai", "base_url": f"{provider.base_url}/v1", "credentials": ["env:LOOPBACK_KEY"]}
    levels = {"low": "low", "high": "xhigh"}
    thinker = {**SIZE, "vision": True, "api": "responses", "thinking": levels}
    return {
        **config,
        "providers": {**config["providers"], "loopback": loopback},
        "models": {**config["models"], "loopback/thinker": thinker},
    }
