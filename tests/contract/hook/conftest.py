"""Fixtures of the hook service's contract tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.jobs.outbox_relay import OutboxRelay
from spawnmesh_runtime.peers import Peer

from tests.support.hook.fixtures import HookMesh, Tenant, open_mesh


@pytest.fixture
async def mesh(databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[HookMesh]:
    """A mesh on the migrated schema with an empty outbox."""
    async with open_mesh(databases["hook"], keys) as opened:
        yield opened


@pytest.fixture
async def replica(mesh: HookMesh) -> Peer:
    """A replica of the service."""
    return await mesh.replica()


@pytest.fixture
async def tenant(mesh: HookMesh, replica: Peer) -> Tenant:
    """A tenant at the replica."""
    return mesh.tenant(replica)


@pytest.fixture
async def relay(mesh: HookMesh) -> OutboxRelay:
    """An outbox relay whose loop is not started."""
    return (await mesh.worker()).relay
