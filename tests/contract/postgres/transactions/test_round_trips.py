"""A transaction begins in one round trip, and its scope is a message of its own."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import Connection, Database, open_database

Open = Callable[[Database], AbstractAsyncContextManager[Any]]

PURGED = """
create table if not exists purged_tenants (
    tenant_id text primary key, settings_version bigint not null, is_done boolean not null
)
"""


@pytest.fixture
async def single(dsn: ServiceDsn) -> AsyncIterator[Database]:
    """A pool of one connection."""
    async with await psycopg.AsyncConnection.connect(dsn.owner) as owner:
        await owner.execute(PURGED)
    async with open_database(dsn.app, name="test", max_connections=1) as opened:
        yield opened


@pytest.mark.parametrize(
    "opened",
    [
        lambda database: database.transaction("acme"),
        lambda database: database.adding("acme"),
        lambda database: database.transaction_with_statements("acme", ["select 1"], {}),
    ],
    ids=["transaction", "adding", "transaction_with_statements"],
)
async def test_transaction_begins_in_one_round_trip(single: Database, opened: Open, tmp_path: Path) -> None:
    async with single.transaction("acme") as connection:
        protocol = Protocol(connection, tmp_path / "messages")
    protocol.begin()
    async with opened(single):
        messages = protocol.end()
    assert messages.count("ReadyForQuery") == 1
    # The coordinator of a Citus cluster repeats the whole message on other nodes.
    assert "\"set local spawnmesh.tenant = 'acme'\"" in messages


class Protocol:
    """The messages of a connection, as libpq prints them."""

    def __init__(self, connection: Connection, file: Path) -> None:
        self._connection = connection.pgconn
        self._stream = file.open("w+")

    def begin(self) -> None:
        self._connection.trace(self._stream.fileno())

    def end(self) -> str:
        self._connection.untrace()
        with self._stream:
            self._stream.seek(0)
            return self._stream.read()
