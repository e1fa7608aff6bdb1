"""Fixtures of the hook service's contract tests."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.operations import time_budget
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_runtime.peers import Peer

from tests.support.hook.fixtures import HookMesh, Tenant, open_mesh
from tests.support.hook.outbox import delete_jobs


@pytest.fixture(scope="module")
async def shared_mesh(databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[HookMesh]:
    """The mesh that serves the replica of all tests of a module."""
    async with open_mesh(databases["hook"], keys) as opened:
        yield opened


@pytest.fixture(scope="module")
async def replica(shared_mesh: HookMesh) -> Peer:
    """A replica of the service with default settings, for all tests of a module."""
    return await shared_mesh.replica()


@pytest.fixture(scope="session")
async def outbox(databases: dict[str, ServiceDsn]) -> AsyncIterator[psycopg.AsyncConnection]:
    """A connection to the tables for all tests."""
    async with await psycopg.AsyncConnection.connect(databases["hook"].app, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def mesh(
    shared_mesh: HookMesh,
    outbox: psycopg.AsyncConnection,
    databases: dict[str, ServiceDsn],
    keys: Path,
) -> AsyncIterator[HookMesh]:
    """A mesh of one test, with an empty outbox. It closes the plugins and replicas of the test."""
    await delete_jobs(outbox)
    async with AsyncExitStack() as stack:
        yield HookMesh(stack, databases["hook"], keys)


@pytest.fixture
async def tenant(mesh: HookMesh, replica: Peer) -> Tenant:
    """A tenant at the replica."""
    return mesh.tenant(replica)


@pytest.fixture
def ample_reserve(monkeypatch: pytest.MonkeyPatch) -> float:
    """Reserve half a minute of each caller's deadline, for a machine of any speed. Return its seconds."""
    seconds = 30.0
    monkeypatch.setattr(time_budget, "_RESERVED_SHARE", 1.0)
    monkeypatch.setattr(time_budget, "_RESERVED_MAX_SECONDS", seconds)
    return seconds


@pytest.fixture
async def deliveries(mesh: HookMesh) -> JobWorker:
    """A worker of deliveries whose loop is not started."""
    return (await mesh.worker()).deliveries
