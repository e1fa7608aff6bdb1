"""Planner settings of a transaction."""

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

_SQL = load_statements(__name__)


async def prefer_index_scans(connection: Connection) -> None:
    """Make the planner use indexes, in index order, for the rest of the transaction."""
    await connection.execute(_SQL["prefer_index_scans"])
