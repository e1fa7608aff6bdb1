"""The database's bulkhead gives up work that takes too long, and waits for its end at the close."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

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
    bulkhead = DatabaseBulkhead(cast(Database, silent), 1)

    async def work(connection: Connection) -> None:
        raise AssertionError("there is no connection")

    with pytest.raises(TimeoutError):
        await bulkhead.execute("a", work)
    async with asyncio.TaskGroup() as tasks:
        finishing = tasks.create_task(bulkhead.finish())
        await silent.cancelled.wait()
        assert not finishing.done()
        silent.let_go.set()
