"""The database's bulkhead gives up work that takes too long, and waits for its end at the close."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from spawnmesh_model_router.operations.bulkhead import DatabaseBulkhead
from spawnmesh_postgres.database import Connection, Database


class SilentDatabase:
    """A server that does not answer, and confirms a cancellation only once it is let go."""

    def __init__(self) -> None:
        self.cancelled, self.let_go = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def pipelined(self, tenant_id: str) -> AsyncIterator[Connection]:
        try:
            await asyncio.Event().wait()
            raise AssertionError("never answers")
            yield
        finally:
            self.cancelled.set()
            await self.let_go.wait()


async def test_the_close_waits_for_work_that_was_given_up() -> None:
    silent = SilentDatabase()
    bulkhead = DatabaseBulkhead(cast(Database, silent), 1, 0.5)

    async def work(connection: Connection) -> None:
        raise AssertionError("there is no connection")

    with pytest.raises(TimeoutError):
        await bulkhead.execute("a", work)
    async with asyncio.TaskGroup() as tasks:
        finishing = tasks.create_task(bulkhead.finish())
        await silent.cancelled.wait()
        assert not finishing.done()
        silent.let_go.set()


class RecordedConnection:
    def __init__(self) -> None:
        self.statements: list[Any] = []

    async def execute(self, statement: Any, **_options: Any) -> None:
        self.statements.append(statement)


class RecordingDatabase:
    def __init__(self) -> None:
        self.connection = RecordedConnection()

    @asynccontextmanager
    async def pipelined(self, tenant_id: str) -> AsyncIterator[RecordedConnection]:
        yield self.connection


async def test_the_lock_timeout_is_set_by_a_statement_that_citus_repeats_on_its_workers() -> None:
    """Citus propagates `set local` if it is a message of its own, and no call of `set_config`."""
    database = RecordingDatabase()

    async def work(connection: Connection) -> str:
        await connection.execute("select 1")
        return "done"

    assert await DatabaseBulkhead(cast(Database, database), 1, 0.5).execute("a", work) == "done"
    assert database.connection.statements == [b"set local lock_timeout = 300", "select 1"]
