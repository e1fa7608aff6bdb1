"""Statements cost what they touch in a tenant that has grown since the planner last counted."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from spawnmesh_postgres.database import Database

from tests.support.session.remains import Remains
from tests.support.session.statements import SQL, list_values

SESSIONS = 5_000

_SESSIONS = """
insert into session.sessions (tenant_id, session_id, request_id, payload_hash, state, agent_id, label,
    model, mode, context, cleanup, runtime,
    parent_session_id, parent_run_id, ancestor_ids, run_timeout, task_hash, traceparent, create_time,
        end_time, archive_time, delete_time)
select %(tenant)s, %(tenant)s || lpad(n::text, 6, '0'), 'r' || n, '', 'CLOSED', 'default', '', '', 'RUN',
    'ISOLATED', 'DELETE', 'SUBAGENT',
    case when n %% 2 = 0 then %(tenant)s || lpad((n - 1)::text, 6, '0') else '' end, '', '{}', '1 hour',
        '', '',
    now(), now() - interval '9 days', now(), case when n > %(count)s / 2 then now() - interval '9 days' end
from generate_series(1, %(count)s) n
"""
_RUNS = """
insert into session.runs (tenant_id, run_id, session_id, position, state, deadline_time, end_time)
select tenant_id, 'run' || session_id, session_id, 2, 'SUCCEEDED', now(), now() from session.sessions
    where tenant_id = %(tenant)s
"""
_EVENTS = """
insert into session.session_events (tenant_id, session_id, number, event_time, kind)
select tenant_id, session_id, n, now() - interval '9 days', 'RUN' from session.sessions,
    generate_series(1, 2) n where tenant_id = %(tenant)s
"""
_MESSAGES = """
insert into session.inbox_messages (tenant_id, session_id, key, text, acknowledge_time)
select tenant_id, session_id, 'k', '', now() - interval '9 days' from session.sessions
    where tenant_id = %(tenant)s
"""

_FIRINGS = """
insert into session.schedule_firings (tenant_id, schedule_id, firing_id, due_time, fire_time, outcome)
select tenant_id, 'sch', session_id, now() - interval '9 days', now() - interval '9 days', 'MISSED'
from session.sessions where tenant_id = %(tenant)s
"""


@pytest.fixture(params=[(3, 3), (60, 40)])
async def grown(remains: Remains, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A tenant without statistics, beside `others` tenants of `size` sessions each."""
    others, size = request.param
    tenant = f"t-{uuid4().hex[:12]}"
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
        for name, count in [*((f"t-{uuid4().hex[:12]}", size) for _ in range(others)), (tenant, SESSIONS)]:
            if name == tenant:
                await link.execute(
                    "vacuum full analyze session.sessions, session.runs, session.session_events,"
                    " session.inbox_messages, session.schedule_firings"
                )
            for statement in (_SESSIONS, _RUNS, _EVENTS, _MESSAGES, _FIRINGS):
                await link.execute(statement, {"tenant": name, "count": count})
        yield tenant
        for table in ("session_events", "inbox_messages", "schedule_firings", "runs", "sessions"):
            await link.execute(f"delete from session.{table} where tenant_id = %s", (tenant,))


PAGES: dict[str, dict[str, Any]] = {
    "list_sessions ALL NEWEST": {**list_values(), "limit": 100, "scan_limit": 1000},
    "list_sessions LABELLED NEWEST": {**list_values("label = a"), "limit": 100, "scan_limit": 1000},
    "list_sessions LIVE NEWEST": {**list_values("state = ACTIVE"), "limit": 100, "scan_limit": 1000},
    "prune_events": {"older_than": "1 day", "limit": 1000},
    "prune_messages": {"older_than": "1 day", "limit": 1000},
    "prune_firings": {"older_than": "1 day", "limit": 1000},
    "forget_deleted_sessions": {"older_than": "1 day", "limit": 1000},
}


async def test_a_page_costs_no_more_than_the_tenants_rows(grown: str, session_database: Database) -> None:
    touched = {name: await blocks_touched(session_database, grown, name) for name in PAGES}
    # A deleted session takes 22 to 34 blocks with its runs, events and messages, by the height of the
    # trees. A plan that reads all runs of the tenant for each takes more than 70.
    assert max(touched.values()) < 9 * SESSIONS, touched


async def blocks_touched(database: Database, tenant: str, name: str) -> int:
    """Return the blocks of a statement that is rolled back."""
    values = {"tenant_id": tenant, **PAGES[name]}
    async with database.transaction(tenant) as connection:
        explained = await connection.execute(f"explain (analyze, buffers, format json) {SQL[name]}", values)
        row = await explained.fetchone()
        await connection.rollback()
    assert row is not None
    plan = row["QUERY PLAN"][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
