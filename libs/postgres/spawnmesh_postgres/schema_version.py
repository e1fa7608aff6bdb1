"""Whether the schema in the database is one that a process knows."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import psycopg
import structlog
from psycopg import AsyncConnection, errors, sql
from psycopg_pool import PoolTimeout

from spawnmesh_postgres.database import EVERY_TENANT, Database
from spawnmesh_postgres.migration_files import MigrationFile, migration_files
from spawnmesh_postgres.migrations import CHECKSUMS

_LOOK_AGAIN_SECONDS = 1.0
# Through a pooler too: one statement, nothing prepared.
_READ = sql.SQL("select migration_id, sha256, contracts from {}").format(sql.Identifier(CHECKSUMS))
_ONLY_READS = "show transaction_read_only"  # Also where the server is a standby.

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Applied:
    """A migration that the database says it has had."""

    sha256: str
    contracts: bool


class SchemaState(StrEnum):
    """How a schema stands to what a process knows. A process runs on the first two."""

    CURRENT = "CURRENT"
    AHEAD = "AHEAD"
    BEHIND = "BEHIND"
    UNFIT = "UNFIT"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Standing:
    """`known_id` and `applied_id` are the newest migrations of process and database, '' for none. `objection` says why the process must not run
    on the schema, and is '' where it may.
    """

    state: SchemaState
    known_id: str
    applied_id: str = ""
    objection: str = ""


def standing(known: Iterable[MigrationFile], applied: Mapping[str, Applied]) -> Standing:
    """How a schema that had those migrations stands to a process that knows these.

    A newer schema is fine as long as nothing that the process needs was taken away from it: so old and new run side by side in an upgrade.
    """
    files = {file.migration_id: file for file in known}
    newest = max(files, default=""), max(applied, default="")
    for migration_id, file in sorted(files.items()):
        there = applied.get(migration_id)
        if there is None:
            return Standing(SchemaState.BEHIND, *newest, f"the schema is older: it lacks {migration_id}")
        if there.sha256 != file.sha256:
            why = f"the schema is another one: {migration_id} was applied with another content"
            return Standing(SchemaState.UNFIT, *newest, why)
    more = sorted(set(applied) - set(files))
    for migration_id in more:
        if applied[migration_id].contracts:
            why = f"the schema is too new: {migration_id} took away what this version needs"
            return Standing(SchemaState.UNFIT, *newest, why)
    return Standing(SchemaState.AHEAD if more else SchemaState.CURRENT, *newest)


async def until_schema_known(
    dsn: str,
    *,
    package: str,
    meanwhile: Callable[[Callable[[], Standing]], AbstractAsyncContextManager[Any]] | None = None,
) -> None:
    """Waits until the schema that the role of `dsn` sees is one the package can run on; says in the log what it waits for.

    `meanwhile` is open while there is something to wait for, and told by the function that it is given what was found last.
    """
    known = migration_files(package)
    found = await _standing_by(dsn, known)
    if not found.objection:
        return
    async with AsyncExitStack() as waiting:
        if meanwhile is not None:
            await waiting.enter_async_context(meanwhile(lambda: found))
        told = ""
        while found.objection:
            if found.objection != told:
                log.warning("schema_not_ready", reason=found.objection)
                told = found.objection
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            found = await _standing_by(dsn, known)


async def standing_of(database: Database, *, package: str) -> Standing:
    """How the database's schema stands to the package now. One that is as it should be, on a server that takes no writes, is UNKNOWN."""
    known = migration_files(package)
    only_reads = False
    try:
        async with database.transaction(EVERY_TENANT) as connection:
            only_reads = await (await connection.execute(_ONLY_READS)).fetchone() == {"transaction_read_only": "on"}
            rows = await (await connection.execute(_READ)).fetchall()
    except errors.UndefinedTable:
        rows = []
    except (psycopg.OperationalError, PoolTimeout):
        return _unknown(known)
    found = standing(known, {row["migration_id"]: Applied(row["sha256"], row["contracts"]) for row in rows})
    if only_reads and not found.objection:
        return replace(found, state=SchemaState.UNKNOWN, objection="the database takes no writes")
    return found


async def _standing_by(dsn: str, known: tuple[MigrationFile, ...]) -> Standing:
    try:
        async with await AsyncConnection.connect(dsn, autocommit=True, connect_timeout=5) as connection:
            rows = await (await connection.execute(_READ, prepare=False)).fetchall()
    except errors.UndefinedTable:
        rows = []
    except psycopg.OperationalError:
        return _unknown(known)
    return standing(known, {row[0]: Applied(row[1], row[2]) for row in rows})


def _unknown(known: tuple[MigrationFile, ...]) -> Standing:
    return Standing(SchemaState.UNKNOWN, max(file.migration_id for file in known), "", "the database does not answer")
