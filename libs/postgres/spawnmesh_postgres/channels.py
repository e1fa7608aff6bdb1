"""Channels of NOTIFY that only the roles of one service know.

Any role of a database may send any notification, and listen to every channel whose name it knows.
So the name of a channel ends with a random suffix, which is in a table of the service's schema:
the roles of other services can neither read it nor guess it.
"""

from psycopg import sql

CHANNELS = "_spawnmesh_channels"
"""The table with the one suffix of a schema. `migrate` creates it. It has no data of tenants."""

READ_SUFFIX = "select suffix from _spawnmesh_channels"
"""A statement notifies the channel `name || (this subquery)`."""

_CREATE = """
create table if not exists {table} (suffix text not null);
insert into {table} (suffix)
select ':' || replace(gen_random_uuid()::text, '-', '') where not exists (select from {table})
"""


def create_channels(schema: str) -> list[sql.Composed]:
    """Return the statements that create the suffix of the schema, unless it has one."""
    table = sql.Identifier(schema, CHANNELS)
    return [sql.SQL(statement).format(table=table) for statement in _CREATE.split(";")]
