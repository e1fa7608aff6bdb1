"""Take the right to change or remove events from the role of a service.

The role gets every right on new tables of its schema (`spawnmesh_postgres.roles`). The migration
takes these back, as the owner. The policies of the tables deny the same.
"""

from typing import LiteralString

import psycopg
from psycopg import sql

EVENTS, CHAINS = "audit_events", "audit_chains"

_GRANTEES = """
select distinct r.rolname
from pg_class c, aclexplode(c.relacl) a join pg_roles r on r.oid = a.grantee
where c.relnamespace = to_regnamespace(%s) and c.relname = %s and a.grantee <> c.relowner
"""
_KEPT: dict[str, LiteralString] = {
    EVENTS: "select, insert",
    CHAINS: "select, insert, update (last_sequence, last_hash, hidden_sequence)",
}


def restrict_audit_rights(connection: psycopg.Connection, schema: str) -> None:
    """Let other roles than the owner of the schema add events and read them, and nothing more.

    Does nothing if the schema has no audit log.
    """
    for table, rights in _KEPT.items():
        name = sql.Identifier(schema, table)
        quoted = sql.Identifier(schema).as_string(connection)
        for (role,) in connection.execute(_GRANTEES, (quoted, table)).fetchall():
            with connection.transaction():
                grantee = sql.Identifier(role)
                connection.execute(sql.SQL("revoke all on {} from {}").format(name, grantee))
                granting = sql.SQL("grant {} on {} to {}")
                connection.execute(granting.format(sql.SQL(rights), name, grantee))
