"""Usage of tenants in the database, by minute and by day."""

from collections.abc import Sequence

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements
from spawnmesh_postgres.tenant_purges import join_writers

from spawnmesh_model_router.domain.policy import Spent
from spawnmesh_model_router.domain.reservations import Reservation

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


async def reserve_spending(
    connection: Connection, tenant_id: str, reservations: Sequence[Reservation]
) -> frozenset[str]:
    """Reserve for each call whose limit is not reached by what is spent and reserved before it.

    Return the ids of those that are reserved. The transaction has charged usage before, if only of
    0, and so locked the day. Reserve nothing for a purged tenant.
    """
    parameters = {
        "tenant_id": tenant_id,
        "reservation_ids": [one.reservation_id for one in reservations],
        "spend_micros": [one.spend_micros for one in reservations],
        "spend_limits": [one.spend_limit for one in reservations],
        "seconds": [one.seconds for one in reservations],
    }
    rows = await (await connection.execute(_SQL["reserve_spending"], parameters)).fetchall()
    return frozenset(row["reservation_id"] for row in rows)


async def charge_usage(
    connection: Connection,
    tenant_id: str,
    token_count: int,
    spend_micros: int,
    released: Sequence[str] | None = None,
) -> None:
    """Add the usage of calls to the current minute and day. Store nothing for a purged tenant.

    With `released`, remove these reservations and those that have expired.
    """
    parameters = {"tenant_id": tenant_id, "token_count": token_count, "spend_micros": spend_micros}
    await join_writers(connection, tenant_id)
    await connection.execute(_SQL["charge_usage"], parameters)
    if released is not None:
        ids = {"tenant_id": tenant_id, "reservation_ids": list(released)}
        await connection.execute(_SQL["release_reservations"], ids)
