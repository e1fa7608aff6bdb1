"""Fixtures of the tests of webhooks: a receiver with HTTPS, and a tenant at a replica that trusts it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.fixtures import HookMesh, Tenant
from tests.support.hook.webhook_receiver import Execute, Serve, WebhookReceiver
from tests.support.hook.webhook_server import https_site, write_certificate


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls") / "webhook.pem")


@pytest.fixture
async def tenant(mesh: HookMesh, certificate: Path) -> Tenant:
    return mesh.tenant(await mesh.replica(webhook_ca_file=certificate))


@pytest.fixture
async def worker(mesh: HookMesh, certificate: Path) -> JobWorker:
    """A worker of deliveries whose loop is not started."""
    return (await mesh.worker(webhook_ca_file=certificate)).deliveries


@pytest.fixture
async def serve(certificate: Path) -> AsyncIterator[Serve]:
    """Give a function that serves a receiver over HTTPS and returns its URL."""
    async with AsyncExitStack() as stack:

        async def served(receiver: WebhookReceiver) -> str:
            return await stack.enter_async_context(https_site(receiver.handle, certificate))

        yield served


@pytest.fixture
async def execute(databases: dict[str, ServiceDsn], tenant: Tenant) -> Execute:
    """Return a function that runs a statement in the tenant's scope."""

    async def executed(statement: str, **values: Any) -> list[Any]:
        async with await psycopg.AsyncConnection.connect(databases["hook"].app) as connection:
            await connection.execute("select set_config('spawnmesh.tenant', %s, false)", (tenant.tenant_id,))
            cursor = await connection.execute(statement.encode(), values or None)
            return await cursor.fetchall() if cursor.description else []

    return executed
