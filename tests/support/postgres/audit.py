"""The tables of an audit log in a schema of their own, and what attacks them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.resources import files

import psycopg
from spawnmesh_core.audit_event import AuditEvent
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.audit import store
from spawnmesh_postgres.audit.rights import restrict_audit_rights
from spawnmesh_postgres.audit.store import EventFilter, ListPosition
from spawnmesh_postgres.database import ALL_TENANTS, Database

SCHEMA = "scratch"
TABLES = (files("spawnmesh_postgres") / "audit" / "audit.sql").read_text()
EVER = datetime(1970, 1, 1, tzinfo=UTC)


def create_audit_tables(dsn: ServiceDsn, schema: str = SCHEMA) -> None:
    """Create the tables with the rights that a migration leaves, or do nothing if they exist."""
    with psycopg.connect(dsn.owner, autocommit=True) as owner:
        if owner.execute("select to_regclass('audit_events')").fetchone() == (None,):
            owner.execute(TABLES.encode())
            restrict_audit_rights(owner, schema)


@asynccontextmanager
async def as_superuser(superuser_dsn: str, schema: str = SCHEMA) -> AsyncIterator[psycopg.AsyncConnection]:
    """Connect as a person to whom no policy applies."""
    dsn = superuser_dsn.replace("/postgres?", "/spawnmesh?")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("select set_config('search_path', %s, false)", (schema,))
        yield connection


def call_of(tenant_id: str, name: str = "ses_1", *, time: datetime | None = None) -> AuditEvent:
    """Return an event for a call that changed something."""
    return AuditEvent(
        tenant_id,
        "spawnmesh.session.v1.SessionService/KillSession",
        "OK",
        time or datetime.now(UTC),
        caller_kind="client",
        subject="mallory",
        resources=(f"session_id={name}",),
    )


async def stored(database: Database, tenant_id: str = ALL_TENANTS) -> list[store.ChainedEvent]:
    """Return all events, as operators of the mesh list them."""
    wanted = EventFilter(datetime(9999, 1, 1, tzinfo=UTC))
    page = await store.list_events(
        database, tenant_id, wanted, ListPosition(EVER), with_hidden=True, page_size=10_000, scan_limit=10_001
    )
    return [event for event, _ in page.events]
