"""A database in which transactions of some tenants take as long as a test wants."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.pipelines import Statement
from spawnmesh_postgres.rows import Row


class HeldDatabase:
    """The database. A transaction of the tenants begins after `go_on` is set.

    `held` is the number of transactions that wait for it.
    """

    def __init__(self, database: Database, *tenant_ids: str) -> None:
        self._database = database
        self._tenant_ids = tenant_ids
        self.go_on = asyncio.Event()
        self.held = 0

    def pipelined(self, tenant_id: str) -> AbstractAsyncContextManager[Any]:
        return self._held(tenant_id, self._database.pipelined(tenant_id))

    def transaction(self, tenant_id: str) -> AbstractAsyncContextManager[Any]:
        return self._held(tenant_id, self._database.transaction(tenant_id))

    async def transact(self, tenant_id: str, *statements: Statement) -> list[list[Row]]:
        await self._hold(tenant_id)
        return await self._database.transact(tenant_id, *statements)

    @asynccontextmanager
    async def _held(
        self, tenant_id: str, transaction: AbstractAsyncContextManager[Any]
    ) -> AsyncIterator[Any]:
        await self._hold(tenant_id)
        async with transaction as connection:
            yield connection

    async def _hold(self, tenant_id: str) -> None:
        if tenant_id in self._tenant_ids:
            self.held += 1
            try:
                await self.go_on.wait()
            finally:
                self.held -= 1


async def settle() -> None:
    """Let every task that can run without waiting do so."""
    for _ in range(20):
        await asyncio.sleep(0)
