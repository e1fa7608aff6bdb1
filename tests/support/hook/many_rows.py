"""Fills every table of the hook service with many rows."""

from collections.abc import Sequence

import psycopg
from spawnmesh_devstack.service_roles import ServiceDsn

TABLES = (
    "jobs",
    "observed_events",
    "decisions",
    "run_revisions",
    "revision_keys",
    "plugin_waits",
    "allowed_spawns",
    "deliveries",
    "webhook_deliveries",
)
FILL = """
insert into observed_events (tenant_id, event_key, hook, session_id, run_id, event, publish_time)
    select %(tenant)s, 'e' || n, 'subagent_ended', 's', 'r', '', %(time)s
    from generate_series(1, %(rows)s) n;
insert into jobs (tenant_id, kind, key, arguments, dead_time)
    select %(tenant)s, 'deliver_event', 'p e' || n,
        jsonb_build_object('plugin', 'p', 'event_key', 'e' || n), now()
    from generate_series(1, %(rows)s) n;
insert into decisions (tenant_id, run_id, request_id, state, claim_id, lease_until, decide_time)
    select %(tenant)s, 'r' || n, 'd', 'DECIDED', gen_random_uuid(), now(), %(time)s
    from generate_series(1, %(rows)s) n;
insert into run_revisions (tenant_id, run_id, revision_count, change_time)
    select %(tenant)s, 'r' || n, 1, %(time)s from generate_series(1, %(rows)s) n;
insert into revision_keys (tenant_id, run_id, plugin, objection_key, attempt_count, change_time)
    select %(tenant)s, 'r' || n, 'p', 'k', 1, %(time)s from generate_series(1, %(rows)s) n;
insert into plugin_waits (tenant_id, run_id, plugin, generation, begin_time)
    select %(tenant)s, 'r' || n, 'p', 1, %(time)s from generate_series(1, %(rows)s) n;
insert into allowed_spawns (tenant_id, session_id, allow_time)
    select %(tenant)s, 's' || n, %(time)s from generate_series(1, %(rows)s) n;
insert into deliveries
    (tenant_id, delivery_id, plugin, hook, session_id, run_id, start_time, latency, decision, error)
    select %(tenant)s, 'd' || n, 'p', 'h', 's', 'r' || n, %(time)s, '1s', 'allow', ''
    from generate_series(1, %(rows)s) n;
insert into webhook_deliveries
    (tenant_id, webhook_id, event_id, event_type, session_id, run_id, event_time, body, state, queue_time,
     end_time)
    select %(tenant)s, 'w', 'evt_' || n, 'run.ended', 's', 'r' || n,
        %(time)s::timestamptz + n * interval '1 millisecond', '{}', 'FAILED', %(time)s, now()
    from generate_series(1, %(rows)s) n;
"""


async def fill(database: ServiceDsn, tenant_ids: Sequence[str], time: str, rows: int) -> None:
    """Insert `rows` rows of each tenant into each table, in one transaction."""
    async with await psycopg.AsyncConnection.connect(
        database.app, cursor_factory=psycopg.AsyncClientCursor
    ) as connection:
        for tenant_id in tenant_ids:
            await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (tenant_id,))
            await connection.execute(FILL, {"tenant": tenant_id, "time": time, "rows": rows})
