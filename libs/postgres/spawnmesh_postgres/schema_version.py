"""Whether the schema in the database is one that a process knows."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psycopg
import structlog
from psycopg import AsyncConnection, errors, sql

from spawnmesh_postgres.migration_files import MigrationFile, migration_files
from spawnmesh_postgres.migrations import CHECKSUMS

_LOOK_AGAIN_SECONDS = 1.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Applied:
    """A migration that the database says it has had."""

    sha256: str
    contracts: bool


def objection(known: Iterable[MigrationFile], applied: Mapping[str, Applied]) -> str | None:
    """Why a process that knows these migrations must not run on a schema that had those; None where it may.

    A newer schema is fine as long as nothing that the process needs was taken away from it: so old and new run side by side in an upgrade.
    """
    ids = set()
    for file in known:
        ids.add(file.migration_id)
        there = applied.get(file.migration_id)
        if there is None:
            return f"the schema is older: it lacks {file.migration_id}"
        if there.sha256 != file.sha256:
            return f"the schema is another one: {file.migration_id} was applied with another content"
    for migration_id, there in sorted(applied.items()):
        if there.contracts and migration_id not in ids:
            return f"the schema is too new: {migration_id} took away what this version needs"
    return None


async def until_schema_known(dsn: str, *, package: str) -> None:
    """Waits until the schema that the role of `dsn` sees is one the package can run on; says in the log what it waits for."""
    known = migration_files(package)
    told = None
    while (waiting_for := await _objection_of(dsn, known)) is not None:
        if waiting_for != told:
            log.warning("schema_not_ready", reason=waiting_for)
            told = waiting_for
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)


async def _objection_of(dsn: str, known: tuple[MigrationFile, ...]) -> str | None:
    # Through a pooler too: one statement, nothing prepared.
    query = sql.SQL("select migration_id, sha256, contracts from {}").format(sql.Identifier(CHECKSUMS))
    try:
        async with await AsyncConnection.connect(dsn, autocommit=True, connect_timeout=5) as connection:
            rows = await (await connection.execute(query, prepare=False)).fetchall()
    except errors.UndefinedTable:
        rows = []
    except psycopg.OperationalError:
        return "the database does not answer"
    return objection(known, {row[0]: Applied(row[1], row[2]) for row in rows})
