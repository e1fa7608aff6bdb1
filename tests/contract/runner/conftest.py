"""Fixtures of the runner's contract tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh_client.turn_messages import text_message
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.runner.real_services import Among, open_among
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.session.fixtures import (
    empty_queue,
    migrated,
    open_mesh,
    open_peers,
    peers,
    session_tables,
)
from tests.support.session.harness import OpenMesh
from tests.support.transcript.fixtures import service

__all__ = ["empty_queue", "migrated", "open_mesh", "open_peers", "peers", "service", "session_tables"]


@pytest.fixture
def mesh(keys: Path) -> ScriptedMesh:
    """Return a mesh whose only session has a task in its transcript."""
    scripted = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    scripted.write(text_message(message_pb2.ROLE_USER, "Do it."), epoch=0)
    return scripted


@pytest.fixture
async def among(
    open_mesh: OpenMesh, peers: dict[str, str], keys: Path, tmp_path: Path, empty_queue: None
) -> AsyncIterator[Among]:
    """Start the real services around a runner, and a tenant of this test alone."""
    async with open_among(open_mesh, peers, keys, tmp_path) as among:
        yield among
