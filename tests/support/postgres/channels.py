"""The channels of a schema that was not migrated."""

import psycopg
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.channels import create_channels


async def add_channels(dsn: ServiceDsn, schema: str) -> ServiceDsn:
    """Create the suffix of the schema's channels, as `migrate` does."""
    async with await psycopg.AsyncConnection.connect(dsn.owner) as owner:
        for statement in create_channels(schema):
            await owner.execute(statement)
    return dsn
