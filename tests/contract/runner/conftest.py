"""Fixtures of the runner's contract tests."""

from pathlib import Path

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh_runner.loop.messages import text_message
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.runner.fixtures import ScriptedMesh
from tests.support.transcript.fixtures import service

__all__ = ["service"]


@pytest.fixture
def mesh(keys: Path) -> ScriptedMesh:
    """Return a mesh whose only session has a task in its transcript."""
    scripted = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    scripted.write(text_message(message_pb2.ROLE_USER, "Do it."), epoch=0)
    return scripted
