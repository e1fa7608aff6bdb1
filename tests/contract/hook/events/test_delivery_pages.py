"""A page of ListDeliveries has a bounded cost, whatever its filter leaves out."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from spawnmesh.hook.v1 import delivery_pb2 as delivery_pb
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.store.deliveries import MAX_SCANNED_DELIVERIES, list_statement
from spawnmesh_postgres.database import open_database

from tests.support.hook.fixtures import HookMesh, Tenant
from tests.support.postgres.rows_read import MODES, rows_read_by

COUNT = 2 * MAX_SCANNED_DELIVERIES + 200
FILTERS: dict[str, dict[str, str]] = {
    "": {},
    "run_id": {"run_id": "run_1"},
    "session_id": {"session_id": "ses_1"},
    "plugin": {"plugin": "gate"},
}
DENIED = (1, MAX_SCANNED_DELIVERIES, COUNT)

_FILL = """
insert into deliveries
    (tenant_id, delivery_id, plugin, hook, session_id, run_id, start_time, latency, decision, error)
select %(tenant)s, 'dlv_' || lpad(n::text, 6, '0'), 'gate', %(hook)s, 'ses_1', 'run_1',
    now() - interval '1 hour' + n * interval '1 millisecond', '1s',
    case when n = any (%(denied)s) then 'deny' else 'allow' end, n::text
from generate_series(1, %(count)s) n
"""


async def fill(dsn: ServiceDsn, tenant_id: str) -> None:
    """Log many calls of one plugin in one run. The text of an error is the number of the call."""
    values = {
        "tenant": tenant_id,
        "hook": HookKind.BEFORE_SPAWN.value,
        "denied": list(DENIED),
        "count": COUNT,
    }
    async with await psycopg.AsyncConnection.connect(dsn.app) as connection:
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (tenant_id,))
        await connection.execute(_FILL, values)
    async with await psycopg.AsyncConnection.connect(dsn.owner) as owner:
        await owner.execute("analyze deliveries")


async def pages_of(tenant: Tenant, **asked: Any) -> list[list[int]]:
    """Return the numbers of the calls on every page."""
    request = pb.ListDeliveriesRequest(**asked)
    pages: list[list[int]] = []
    while not pages or request.page_token:
        page = await tenant.as_client("ListDeliveries", request)
        pages.append([int(one.error) for one in page.deliveries])
        request.page_token = page.next_page_token
    return pages


async def test_ListDeliveries__pages_behind_many_calls_with_another_decision(
    mesh: HookMesh, tenant: Tenant, databases: dict[str, ServiceDsn]
) -> None:
    await fill(databases["hook"], tenant.tenant_id)
    few = COUNT // MAX_SCANNED_DELIVERIES + 1
    for name, narrowest in FILTERS.items():
        pages = await pages_of(tenant, decision=delivery_pb.DELIVERY_DECISION_DENY, **narrowest)
        assert [number for page in pages for number in page] == sorted(DENIED, reverse=True), name
        assert len(pages) == few, name
    assert await pages_of(tenant, decision=delivery_pb.DELIVERY_DECISION_BLOCK) == [[]] * few
    assert await pages_of(tenant, run_id="run_1", session_id="ses_2") == [[]] * few
    assert await pages_of(tenant, session_id="ses_1", plugin="other") == [[]] * few
    assert await pages_of(tenant, run_id="run_2") == [[]]
    one_by_one = await pages_of(tenant, decision=delivery_pb.DELIVERY_DECISION_DENY, page_size=1)
    assert [number for page in one_by_one for number in page] == sorted(DENIED, reverse=True)
    everything = await pages_of(tenant, page_size=1000)
    assert [number for page in everything for number in page] == list(range(COUNT, 0, -1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("narrowest", FILTERS)
async def test_a_page_reads_a_bounded_number_of_deliveries(
    mesh: HookMesh, databases: dict[str, ServiceDsn], mode: str, narrowest: str
) -> None:
    tenant_id = f"t-{uuid4().hex[:12]}"
    await fill(databases["hook"], tenant_id)
    now = datetime.now(UTC)
    values = {
        "tenant_id": tenant_id,
        "session_id": "",
        "run_id": "",
        "plugin": "",
        **FILTERS[narrowest],
        "decision": "block",
        "start_time": now - timedelta(days=1),
        "end_time": now + timedelta(days=1),
        "before_time": now + timedelta(days=1),
        "before_id": "~",
        "scan_limit": 100,
        "limit": 51,
    }
    async with open_database(databases["hook"].app, name="pages", max_connections=1) as database:
        statement = list_statement(narrowest)
        assert await rows_read_by(database, tenant_id, ["deliveries"], statement, values, mode) <= 110
