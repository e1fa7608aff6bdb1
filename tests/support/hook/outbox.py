"""The deliveries that earlier tests left in the outbox of the hook service."""

import psycopg
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import ALL_TENANTS


async def empty_outbox(database: ServiceDsn, *, but: str = "") -> None:
    """Delete the jobs of other tests: those of all tenants `but` one.

    They would come due in this test, and the port of their plugin may belong to another plugin by
    now.
    """
    async with await psycopg.AsyncConnection.connect(database.app) as connection:
        await delete_jobs(connection, but=but)


async def delete_jobs(connection: psycopg.AsyncConnection, *, but: str = "") -> None:
    """Do so on a connection with the role of the service."""
    for tenant_id in set(await _tenants_with_jobs(connection)) - {but}:
        await connection.execute("select set_config('spawnmesh.tenant', %s, false)", (tenant_id,))
        await connection.execute("delete from jobs")


async def _tenants_with_jobs(connection: psycopg.AsyncConnection) -> list[str]:
    await connection.execute("select set_config('spawnmesh.tenant', %s, false)", (ALL_TENANTS,))
    cursor = await connection.execute("select distinct tenant_id from job_queue")
    return [str(tenant_id) for (tenant_id,) in await cursor.fetchall()]
