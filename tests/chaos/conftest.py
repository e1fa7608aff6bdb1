"""The session service with real services, and a replica that is killed, paused and failed."""

from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg.rows import dict_row
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.watchdog import Watchdog
from spawnmesh_runtime.peers import Peer

from tests.support.chaos.recovery_checks import RecoveryChecks
from tests.support.chaos.victim import Victim, open_victim
from tests.support.serving import caller_at
from tests.support.session.fixtures import (
    _served_mesh,
    mesh,
    migrated,
    open_mesh,
    open_peers,
    peers,
    remains,
    session_tables,
)
from tests.support.session.harness import Mesh
from tests.support.session.remains import Remains
from tests.support.session.tables import forget_shared_hooks
from tests.support.session.worker import components_of

__all__ = [
    "_served_mesh",
    "mesh",
    "migrated",
    "open_mesh",
    "open_peers",
    "peers",
    "remains",
    "session_tables",
]


@pytest.fixture(scope="session")
async def victim(
    _served_mesh: Mesh,
    peers: dict[str, str],
    watchdog: Watchdog,
    postgres: Postgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Victim]:
    """A replica of the session service with failpoints, in a process of its own."""
    folder = tmp_path_factory.mktemp("victim")
    async with open_victim(folder, _served_mesh, peers, watchdog, postgres.superuser_dsn) as replica:
        yield replica


@pytest.fixture
async def keeping(_served_mesh: Mesh, postgres: Postgres) -> Mesh:
    """Like `mesh`, and the tenant keeps the files of sessions that are to be kept."""
    await forget_shared_hooks(postgres)
    own = Mesh(_served_mesh.peer, _served_mesh.keys, _served_mesh.settings)
    await own.create_tenant(settings=TenantSettings(retain_on_session_keep=True))
    return own


@pytest.fixture(scope="session")
async def transcript(peers: dict[str, str]) -> AsyncIterator[Peer]:
    """Calls the transcript service."""
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


@pytest.fixture(scope="session")
async def _recovery(_served_mesh: Mesh, remains: Remains) -> AsyncIterator[RecoveryChecks]:
    async with (
        components_of(_served_mesh.settings) as components,
        await psycopg.AsyncConnection.connect(
            remains.dsn, autocommit=True, row_factory=dict_row, options="-c search_path=session"
        ) as link,
    ):
        yield RecoveryChecks(components, _served_mesh.settings, remains, link)


@pytest.fixture
async def recovery(_recovery: RecoveryChecks) -> AsyncIterator[RecoveryChecks]:
    """The worker's recovery, and the tables; the test's tenants have no work in the queue later."""
    yield _recovery
    await _recovery.forget()
