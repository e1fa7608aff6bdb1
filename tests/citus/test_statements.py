"""Every named statement runs on a cluster.

Each parameter has a value of the type that PostgreSQL infers, and no row is there. So this finds
what Citus refuses to plan, and what it sends to a node in a form that the node does not understand.
"""

import re
from collections.abc import Mapping

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import DataError, InsufficientPrivilege, IntegrityError
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import ALL_TENANTS, scope_statement

from tests.support.citus.statements import SERVICES, statements

TENANT = "t-statements"
VALUES = {
    "boolean": "true",
    "bytea": "\\x00",
    "date": "2026-01-02",
    "double precision": "1.5",
    "smallint": "1",
    "integer": "1",
    "bigint": "1",
    "interval": "1 second",
    "jsonb": "{}",
    "numeric": "1.5",
    "text": "a",
    "tsquery": "a",
    "timestamp with time zone": "2026-01-02T03:04:05Z",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
BYTES = frozenset({"bodies", "body"})
"""Parameters whose type the statement does not say: those that are bytes."""
_PARAMETER = re.compile(r"%\((\w+)\)[sbt]")
_DOMAINS = """
    select t.oid::regtype::text, format_type(t.typbasetype, null), coalesce(pg_get_constraintdef(c.oid), '')
    from pg_type t left join pg_constraint c on c.contypid = t.oid and c.contype = 'c'
    where t.typtype = 'd' and t.typnamespace = current_schema()::regnamespace
"""
_QUOTED = re.compile(r"'(\w+)'")
_TYPES = "select unnest(parameter_types)::text from pg_prepared_statements where name = 'tried'"

pytestmark = pytest.mark.long_citus

Session = psycopg.AsyncConnection[tuple[str, ...]]


@pytest.mark.parametrize("service", SERVICES)
async def test_every_statement_runs(migrated: dict[str, ServiceDsn], service: str) -> None:
    refused = {}
    async with await psycopg.AsyncConnection.connect(migrated[service].app) as connection:
        values = VALUES | await _values_of_domains(connection)
        for name, text in ((name, text) for owner, name, text in statements() if owner == service):
            try:
                await _run(connection, text, values)
            except psycopg.Error as error:
                refused[name] = str(error)
    assert refused == {}


async def _values_of_domains(connection: Session) -> dict[str, str]:
    """Return a value that each domain admits, by the name of the domain."""
    async with connection.transaction():
        domains = await (await connection.execute(_DOMAINS)).fetchall()
    values = {}
    for name, kind, check in domains:
        quoted = _QUOTED.search(check)
        values[name] = quoted[1] if quoted else VALUES[kind]
    return values


async def _run(connection: Session, text: str, values: Mapping[str, str]) -> None:
    """Run the statement for one tenant, or for all if it needs that, and change nothing."""
    try:
        await _run_in_scope(connection, text, values, TENANT)
    except InsufficientPrivilege:
        await _run_in_scope(connection, text, values, ALL_TENANTS)


async def _run_in_scope(connection: Session, text: str, values: Mapping[str, str], tenant_id: str) -> None:
    names = list(dict.fromkeys(_PARAMETER.findall(text)))
    numbered = _PARAMETER.sub(lambda found: _numbered(found[1], names), text).replace("%%", "%")
    try:
        async with connection.transaction(force_rollback=True):
            await connection.execute("deallocate all")
            await connection.execute(scope_statement(tenant_id).encode())
            await connection.execute(f"prepare tried as {numbered.rstrip().rstrip(';')}".encode())
            types = [kind for (kind,) in await (await connection.execute(_TYPES)).fetchall()]
            given = [
                tenant_id if name == "tenant_id" else _value(kind, values)
                for name, kind in zip(names, types, strict=True)
            ]
            arguments = sql.SQL("({})").format(sql.SQL(", ").join(given)) if given else sql.SQL("")
            await connection.execute(sql.SQL("execute tried{}").format(arguments))
    except (IntegrityError, DataError):
        pass  # The node has planned it, and refuses a value.


def _numbered(name: str, names: list[str]) -> str:
    return f"${names.index(name) + 1}" + ("::bytea" if name in BYTES else "")


def _value(kind: str, values: Mapping[str, str]) -> str:
    if kind.endswith("[]"):
        return f'{{"{values[kind.removesuffix("[]")]}"}}'
    return values[kind]
