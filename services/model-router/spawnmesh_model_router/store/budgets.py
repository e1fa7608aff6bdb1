"""Usage of tenants in the database, by minute and by day."""

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements
from spawnmesh_postgres.tenant_purges import join_writers

from spawnmesh_model_router.domain.policy import Spent

_SQL = load_statements(__name__)


async def count_requests(connection: Connection, tenant_id: str, count: int) -> Spent | None:
    """Count requests of the tenant. Return its usage, these requests included.

    Returns None for a purged tenant. The first request of a minute also deletes the past periods.
    """
    parameters = {"tenant_id": tenant_id, "request_count": count}
    await join_writers(connection, tenant_id)
    row = await (await connection.execute(_SQL["count_requests"], parameters)).fetchone()
    if row is None:
        return None
    if row["request_count"] == count:
        await connection.execute(_SQL["delete_past_periods"], {"tenant_id": tenant_id})
    return Spent(**row)


async def charge_usage(connection: Connection, tenant_id: str, token_count: int, spend_micros: int) -> None:
    """Add the usage of calls to the current minute and day. Store nothing for a purged tenant."""
    parameters = {"tenant_id": tenant_id, "token_count": token_count, "spend_micros": spend_micros}
    await join_writers(connection, tenant_id)
    await connection.execute(_SQL["charge_usage"], parameters)
