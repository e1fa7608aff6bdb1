"""Statements that are sent in one pipeline, as one transaction."""

from collections.abc import Mapping
from typing import Any

from psycopg.rows import DictRow

from spawnmesh_postgres.database import Database

Statement = tuple[str, Mapping[str, Any]]
"""A statement and its parameters."""


async def transact(database: Database, tenant_id: str, *statements: Statement) -> list[list[DictRow]]:
    """Run the statements as one transaction, in one round trip, and return the rows of each.

    Each sees what was committed before it began. `Database.pipelined` gives the scope, the bound
    and the errors.
    """
    async with database.pipelined(tenant_id) as connection:
        cursors = [
            await connection.execute(statement, parameters, binary=True)
            for statement, parameters in statements
        ]
    return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]
