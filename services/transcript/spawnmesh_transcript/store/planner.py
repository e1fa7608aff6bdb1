"""Settings of a transaction that bind the planner to indexes."""

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

_SQL = load_statements(__name__)


async def begin_snapshot(connection: Connection) -> None:
    """Make all statements of the transaction read one snapshot, with `keep_index_order`.

    Must be the first statement of the transaction.
    """
    await connection.execute(_SQL["begin_snapshot"])


async def keep_index_order(connection: Connection) -> None:
    """Make later statements read only the entries that they return, not the whole transcript."""
    await connection.execute(_SQL["keep_index_order"])
