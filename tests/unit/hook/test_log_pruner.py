"""The pruner deletes old rows tenant by tenant."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
from spawnmesh_hook.jobs.log_pruner import LogPruner
from spawnmesh_postgres.database import ALL_TENANTS

BROKEN, TENANTS = "b", ("a", "b", "c")


class Found:
    rowcount = 0

    def __init__(self, rows: list[dict[str, str]]) -> None:
        self._rows = rows

    async def fetchall(self) -> list[dict[str, str]]:
        return self._rows


class Connection:
    async def execute(self, _statement: str, parameters: dict[str, Any]) -> Found:
        after = parameters.get("after_id")
        return Found([] if after is None else [{"tenant_id": one} for one in TENANTS if one > after])


class PartlyBroken:
    """A database in which the rows of one tenant cannot be deleted in time."""

    def __init__(self) -> None:
        self.pruned: list[str] = []

    @asynccontextmanager
    async def pipelined(self, tenant_id: str) -> AsyncIterator[Connection]:
        if tenant_id == BROKEN:
            raise psycopg.errors.QueryCanceled("statement timeout")
        if tenant_id != ALL_TENANTS:
            self.pruned.append(tenant_id)
        yield Connection()


async def test_a_tenant_that_cannot_be_pruned_stops_no_other() -> None:
    database: Any = PartlyBroken()
    await LogPruner(database, timedelta(days=1)).prune()
    assert database.pruned == ["a", "c"]
