"""Transactions whose statements read one snapshot."""

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

_SQL = load_statements(__name__)
BEGIN_SNAPSHOT = _SQL["begin_snapshot"]
BEGIN_WRITABLE_SNAPSHOT = _SQL["begin_writable_snapshot"]


async def begin_snapshot(connection: Connection) -> None:
    """Make all statements of the transaction read one snapshot.

    Must be the first statement of the transaction.
    """
    await connection.execute(BEGIN_SNAPSHOT)
