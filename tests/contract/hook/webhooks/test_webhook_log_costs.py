"""A page of the log of a webhook, and a replay, read a bounded number of messages."""

from datetime import UTC, datetime
from uuid import uuid4

import psycopg
import pytest
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.store import webhook_deliveries
from spawnmesh_postgres.database import open_database

from tests.support.hook.many_rows import fill
from tests.support.postgres.rows_read import MODES, rows_read_by

ROWS = 3_000
EVER, SOME_DAY = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
CASES = {
    "list_webhook_deliveries": {
        "session_id": "another",
        "state": "PENDING",
        "event_type": "session.ended",
        "start_time": EVER,
        "end_time": SOME_DAY,
        "before_time": SOME_DAY,
        "before_id": "~",
        "scan_limit": 100,
        "limit": 51,
    },
    "list_failed": {"since": EVER, "limit": 100},
    "count_messages": {"event_ids": [f"evt_{number}" for number in range(1, 51)]},
    "get_message": {"event_id": "evt_1"},
}


@pytest.mark.usefixtures("mesh")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("statement", CASES)
async def test_a_statement_reads_a_bounded_number_of_messages(
    databases: dict[str, ServiceDsn], mode: str, statement: str
) -> None:
    tenant_id = f"t-{uuid4().hex[:12]}"
    await fill(databases["hook"], [tenant_id], "2026-01-01 00:00:00Z", ROWS)
    async with await psycopg.AsyncConnection.connect(databases["hook"].owner) as owner:
        await owner.execute("analyze webhook_deliveries")
    values = {"tenant_id": tenant_id, "webhook_id": "w", **CASES[statement]}
    async with open_database(databases["hook"].app, name="pages", max_connections=1) as database:
        sql = webhook_deliveries._SQL[statement]
        assert await rows_read_by(database, tenant_id, ["webhook_deliveries"], sql, values, mode) <= 210
