"""Compare the schema of the database with the migrations that a process knows."""

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

from spawnmesh_postgres.connection import with_timeouts
from spawnmesh_postgres.database import ALL_TENANTS, Database
from spawnmesh_postgres.migration_files import CHECKSUMS, MigrationFile, migration_files

_POLL_SECONDS = 1.0
# One unprepared statement, so that it works through a pooler.
_READ = sql.SQL("select migration_id, sha256, contracts from {}").format(sql.Identifier(CHECKSUMS))
_READ_ONLY = "show transaction_read_only"  # It is also on for a standby.

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Applied:
    """A migration that the database has recorded as applied."""

    sha256: str
    contracts: bool


class SchemaState(StrEnum):
    """The state of a schema for a process. A process runs on CURRENT and AHEAD."""

    CURRENT = "CURRENT"
    AHEAD = "AHEAD"
    BEHIND = "BEHIND"
    UNFIT = "UNFIT"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The result of a comparison.

    `known_id` and `applied_id` are the newest migrations of the process and the database; '' means
    none. `objection` states why the process must not run on the schema; '' means that it may.
    """

    state: SchemaState
    known_id: str
    applied_id: str = ""
    objection: str = ""


def compare_schema(known: Iterable[MigrationFile], applied: Mapping[str, Applied]) -> SchemaStatus:
    """Compare the applied migrations with the known ones.

    A newer schema is accepted if nothing that the process needs was removed: old and new releases
    run side by side during an upgrade.
    """
    files = {file.migration_id: file for file in known}
    newest = max(files, default=""), max(applied, default="")
    for migration_id, file in sorted(files.items()):
        found_file = applied.get(migration_id)
        if found_file is None:
            return SchemaStatus(SchemaState.BEHIND, *newest, f"the schema is older: it lacks {migration_id}")
        if found_file.sha256 != file.sha256:
            why = f"the schema is another one: {migration_id} was applied with another content"
            return SchemaStatus(SchemaState.UNFIT, *newest, why)
    more = sorted(set(applied) - set(files))
    for migration_id in more:
        if applied[migration_id].contracts:
            why = f"the schema is too new: {migration_id} took away what this version needs"
            return SchemaStatus(SchemaState.UNFIT, *newest, why)
    return SchemaStatus(SchemaState.AHEAD if more else SchemaState.CURRENT, *newest)


async def wait_for_schema(
    dsn: str,
    *,
    package: str,
    meanwhile: Callable[[Callable[[], SchemaStatus]], AbstractAsyncContextManager[Any]] | None = None,
) -> None:
    """Wait until the package can run on the schema that the role of `dsn` sees, and log the cause.

    `meanwhile` is entered only if there is something to wait for. It receives a function that
    returns the latest result.
    """
    known = migration_files(package)
    found = await _status_by(dsn, known)
    if not found.objection:
        return
    async with AsyncExitStack() as waiting:
        if meanwhile is not None:
            await waiting.enter_async_context(meanwhile(lambda: found))
        logged = ""
        while found.objection:
            if found.objection != logged:
                log.warning("schema_not_ready", reason=found.objection)
                logged = found.objection
            await asyncio.sleep(_POLL_SECONDS)
            found = await _status_by(dsn, known)


async def schema_status(database: Database, *, package: str) -> SchemaStatus:
    """Return the state of the schema now. A valid schema on a read-only server is UNKNOWN."""
    known = migration_files(package)
    read_only = False
    try:
        async with database.transaction(ALL_TENANTS) as connection:
            read_only = await (await connection.execute(_READ_ONLY)).fetchone() == {
                "transaction_read_only": "on"
            }
            rows = await (await connection.execute(_READ)).fetchall()
    except errors.UndefinedTable:
        rows = []
    except (psycopg.OperationalError, PoolTimeout):
        return unknown_schema(package)
    found = compare_schema(
        known, {row["migration_id"]: Applied(row["sha256"], row["contracts"]) for row in rows}
    )
    if read_only and not found.objection:
        return replace(found, state=SchemaState.UNKNOWN, objection="the database is read-only")
    return found


async def _status_by(dsn: str, known: tuple[MigrationFile, ...]) -> SchemaStatus:
    try:
        async with await AsyncConnection.connect(with_timeouts(dsn), autocommit=True) as connection:
            rows = await (await connection.execute(_READ, prepare=False)).fetchall()
    except errors.UndefinedTable:
        rows = []
    except psycopg.OperationalError:
        return _unknown(known)
    return compare_schema(known, {row[0]: Applied(row[1], row[2]) for row in rows})


def unknown_schema(package: str) -> SchemaStatus:
    """Return the status of the package's schema if the database does not answer."""
    return _unknown(migration_files(package))


def _unknown(known: tuple[MigrationFile, ...]) -> SchemaStatus:
    return SchemaStatus(
        SchemaState.UNKNOWN, max(file.migration_id for file in known), "", "the database does not answer"
    )
