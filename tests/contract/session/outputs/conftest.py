"""The attachment-blob service behind the session service of these tests."""

from collections.abc import AsyncIterator

import pytest

from tests.support.serving import caller_at
from tests.support.session.harness import Mesh
from tests.support.session.outputs import Blobs


@pytest.fixture
async def blobs(mesh: Mesh, peers: dict[str, str]) -> AsyncIterator[Blobs]:
    async with caller_at(peers["attachment-blob"], "attachment-blob") as peer:
        yield Blobs(peer, mesh)
