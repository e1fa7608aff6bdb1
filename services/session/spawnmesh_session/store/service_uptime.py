"""The time for which the service has been serving without a break."""

from datetime import timedelta

from spawnmesh_postgres.database import ALL_TENANTS, Database
from spawnmesh_postgres.statements import load_statements

_SQL = load_statements(__name__)


async def record_heartbeat(database: Database, longest_break: timedelta) -> None:
    """Record that a replica serves, in one round trip.

    The service counts as away if no heartbeat follows within `longest_break`.
    """
    async with database.pipelined(ALL_TENANTS) as connection:
        await connection.execute(_SQL["record_heartbeat"], {"longest_break": longest_break})
