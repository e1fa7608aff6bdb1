"""A whole mesh for each test run, started when a test first asks for it."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from spawnmesh_devstack.stack import Stack, open_stack

from tests.support.mesh.mcp_page import configure


def _quiet(_line: str) -> None:
    """Progress is for people; tests have none watching."""


@pytest.fixture(scope="session")
async def stack() -> AsyncIterator[Stack]:
    """Every process of the mesh, with the scripted model and a runner that has MCP servers. A test that stops one starts it again.

    Not under pytest's own directory, which every new pytest run closes to the account PostgreSQL runs as.
    """
    with tempfile.TemporaryDirectory(prefix="spawnmesh-mesh-") as folder:
        home = Path(folder)
        given = {"RUNNER_MCP_CONFIG_FILE": str(configure(home))}
        async with open_stack(home / "data", _quiet, environment=given) as mesh:
            yield mesh
