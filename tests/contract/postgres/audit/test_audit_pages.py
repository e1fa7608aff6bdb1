"""A page of the audit log has a bounded cost, whatever its filter leaves out."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.audit import store
from spawnmesh_postgres.audit.store import EventFilter, ListPosition
from spawnmesh_postgres.database import ALL_TENANTS, Database, open_database
from spawnmesh_postgres.statements import load_statements

from tests.support.postgres.audit import EVER, as_superuser, create_audit_tables
from tests.support.postgres.rows_read import MODES, rows_read_by

SQL = load_statements(store.__name__)
COUNT = 1_100
SCANNED = 500
HIDDEN = 10
DENIED = (1, HIDDEN, HIDDEN + 1, SCANNED, COUNT)
TRACE = "0123456789abcdef" * 2
TENANTS = ("one tenant", "every tenant")

_FILL = """
insert into audit_events (
    tenant_id, sequence, event_id, event_time, last_time, call_count, method, caller_kind, subject,
    token_id, resources, code, reason, trace_id, peer, hash
)
select %(tenant)s, n, gen_random_uuid()::text, %(start)s::timestamptz + n * interval '10 microseconds',
    now(), 1, 's.v1.S/M', 'client', '', '', '{}',
    case when n = any (%(denied)s) then 'PERMISSION_DENIED' else 'OK' end,
    '', '', '', ''
from generate_series(1, %(count)s) n
"""


@pytest.fixture
async def database(dsn: ServiceDsn) -> AsyncIterator[Database]:
    await asyncio.to_thread(create_audit_tables, dsn)
    async with open_database(dsn.app, name="test audit", max_connections=1) as opened:
        yield opened


async def fill(postgres: Postgres, start: datetime, count: int = COUNT) -> str:
    """Add many events of a new tenant, some of them hidden from it, and return its id."""
    tenant_id = f"t-{uuid4().hex[:12]}"
    values = {"tenant": tenant_id, "start": start, "denied": list(DENIED), "count": count}
    async with as_superuser(postgres.superuser_dsn) as superuser:
        await superuser.execute(_FILL, values)
        chain = b"insert into audit_chains (tenant_id, last_sequence, hidden_sequence) values (%s, %s, %s)"
        await superuser.execute(chain, (tenant_id, count, HIDDEN))
        await superuser.execute("analyze audit_events")
    return tenant_id


async def pages_of(
    database: Database, scope: str, wanted: EventFilter, start: datetime, *, with_hidden: bool, page_size: int
) -> list[list[int]]:
    """Return the sequences of the events on every page."""
    pages: list[list[int]] = []
    position: ListPosition | None = ListPosition(start)
    while position is not None:
        page = await store.list_events(
            database,
            scope,
            wanted,
            position,
            with_hidden=with_hidden,
            page_size=page_size,
            scan_limit=SCANNED,
        )
        pages.append([event.sequence for event, _ in page.events])
        position = page.end
    return pages


@pytest.mark.parametrize("scope", TENANTS)
@pytest.mark.parametrize("page_size", [1, 2, 100])
async def test_pages_behind_many_other_events_are_complete(
    database: Database, postgres: Postgres, scope: str, page_size: int
) -> None:
    start = EVER + timedelta(seconds=uuid4().int % 10**9)  # Events of other tests are at other times.
    tenant_id = await fill(postgres, start)
    end = start + timedelta(minutes=1)
    is_operator = scope == "every tenant"
    expected = [n for n in DENIED if is_operator or n > HIDDEN]

    async def listed(**wanted: str) -> list[list[int]]:
        return await pages_of(
            database,
            ALL_TENANTS if is_operator else tenant_id,
            EventFilter(end, **wanted),
            start,
            with_hidden=is_operator,
            page_size=page_size,
        )

    assert [one for page in await listed(outcome="DENIED") for one in page] == expected
    few = COUNT // SCANNED + 1
    assert await listed(trace_id=TRACE) == [[]] * few
    assert await listed(method="Other") == [[]] * few
    everything = [one for page in await listed() for one in page]
    assert everything == list(range(1 if is_operator else HIDDEN + 1, COUNT + 1))


@pytest.mark.parametrize("scope", TENANTS)
@pytest.mark.parametrize("mode", MODES)
async def test_a_page_reads_a_bounded_number_of_events(
    database: Database, postgres: Postgres, mode: str, scope: str
) -> None:
    tenant_id = await fill(postgres, datetime.now(UTC), count=60_000)
    values = {
        "tenant_id": tenant_id,
        "after_time": EVER,
        "after_tenant": "",
        "after_sequence": 0,
        "end_time": datetime(9999, 1, 1, tzinfo=UTC),
        "method": "",
        "outcome": "",
        "trace_id": TRACE,
        "denied": [],
        "with_hidden": False,
        "scan_limit": 100,
        "limit": 51,
    }
    name = "list_tenant_events" if scope == "one tenant" else "list_events"
    within = tenant_id if scope == "one tenant" else ALL_TENANTS
    assert await rows_read_by(database, within, ["audit_events"], SQL[name], values, mode) <= 110
