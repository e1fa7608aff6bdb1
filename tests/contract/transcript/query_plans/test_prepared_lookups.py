"""The lookups of an import keep no plan of the time when the table was nearly empty."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn, create_service_database
from spawnmesh_devstack.watchdog import Watchdog
from spawnmesh_postgres.database import Connection, open_database
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.store import imports as import_store

from tests.support.transcript.fixtures import Service
from tests.support.transcript.long_transcripts import FILL
from tests.support.transcript.rows_read import Counted, Work
from tests.support.transcript.tables import Superuser

ROWS = 2_400
RUNS = 16  # The driver prepares a statement after five runs, and the server then makes five own plans.


@pytest.fixture(scope="module")
async def postgres(watchdog: Watchdog) -> AsyncIterator[Postgres]:
    """A server for these tests alone, since rows that other tests leave decide on plans."""
    with tempfile.TemporaryDirectory(prefix="spawnmesh-postgres-") as folder:
        root = Path(folder)
        async with Postgres(root / "data", root / "postgres.log", watchdog, lambda _line: None) as server:
            yield server


@pytest.fixture(scope="module")
async def databases(postgres: Postgres) -> dict[str, ServiceDsn]:
    return await create_service_database(postgres.superuser_dsn, ["transcript"])


def _ids(first: int, last: int) -> list[str]:
    return [f"ent_{n}" for n in range(first, last)]


async def _seqs(connection: Connection, key: Key) -> None:
    await import_store.find_entry_seqs(connection, key, _ids(ROWS - 100, ROWS))


async def _off_branch(connection: Connection, key: Key) -> None:
    await import_store.list_messages_off_branch(connection, key, f"ent_{ROWS - 1}")


async def _on_branch(connection: Connection, key: Key) -> None:
    await import_store.find_newest_on_branch(connection, key, f"ent_{ROWS - 1}", _ids(ROWS - 9, ROWS))


@pytest.mark.parametrize(("lookup", "limit"), [(_seqs, 200), (_off_branch, ROWS + 10), (_on_branch, ROWS)])
async def test_lookup_reads_its_rows_after_many_runs_on_an_empty_table(
    service: Service, superuser: Superuser, lookup: Work, limit: int
) -> None:
    await superuser.execute("alter table entries set (autovacuum_enabled = false)")
    await superuser.execute("delete from entries")
    await superuser.execute("vacuum (full, analyze) entries")
    session = service.session()
    await session.create()
    key = Key(session.tenant_id, session.session_id)
    async with open_database(service.dsn.app, name="importing", max_connections=1) as database:
        counted = Counted(database)
        for _ in range(RUNS):
            async with counted.transaction(key.tenant_id) as connection:
                await lookup(connection, key)
        parameters = {"tenant_id": key.tenant_id, "session_id": key.session_id, "rows": ROWS}
        await superuser.execute(FILL[0], parameters)
        counted.rows_read = 0
        async with counted.transaction(key.tenant_id) as connection:
            await lookup(connection, key)
    assert counted.rows_read <= limit
