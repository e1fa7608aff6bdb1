"""A database of the session service with a tenant that grew after the last analyze."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
from psycopg import sql
from spawnmesh_postgres.migrations import migrate
from spawnmesh_postgres.roles import DatabaseUrls, prepare_database

TENANT = "t-grown"
BEING_SPAWNED = "ses~being-spawned"
IDLE = "ses~idle"
_TEMPLATE = "grown_template"
TABLES = (
    "tenants",
    "sessions",
    "runs",
    "run_queue",
    "jobs",
    "inbox_messages",
    "session_events",
    "approvals",
    "output_sets",
    "budgets",
    "model_calls",
    "schedules",
    "schedule_firings",
    "agents",
)

FILL_TENANT = (
    """
    insert into session.agents (tenant_id, agent_id, system_prompt, models, tools, spawnable_agents,
        max_turn_count, context_token_budget)
    select unnest(%(tenants)s::text[]), 'default', '', '{}', '{}', '{}', 0, 0
    """,
    """
    insert into session.tenants (tenant_id, display_name, settings, max_running_run_count,
        max_queued_run_count, ready)
    select unnest(%(tenants)s::text[]), '', '{"deleteAfter": "86400s"}', 32, 110, true
    """,
)
"""The tenants and their agents."""

_FILL = (
    *FILL_TENANT,
    """
    insert into session.sessions (tenant_id, session_id, request_id, payload_hash, state, agent_id,
        label, model, mode, context, cleanup,
        runtime, parent_session_id, parent_run_id, ancestor_ids, run_timeout, task_hash, traceparent,
        last_event_number, create_time, end_time)
    select tenant, ids[n], 'r' || n || tenant, '', 'CLOSED', 'default', '', '', 'RUN',
        'ISOLATED', 'DELETE', 'SUBAGENT',
        case when n > 1 then ids[1] else '' end, '', case when n > 1 then ids[:1] else '{}' end,
        '1 hour', '', '', 3,
        now() - interval '10 days', now() - interval '9 days' + n * interval '1 second'
    from (
        select tenant, array_agg(id order by id) as ids
        from unnest(%(tenant_of)s::text[], %(ids)s::text[]) given (tenant, id) group by tenant
    ) given, generate_series(1, cardinality(ids)) n
    order by tenant, n
    """,
    """
    insert into session.runs (tenant_id, run_id, session_id, position, state, epoch, deadline_time, end_time)
    select tenant_id, 'run' || substr(session_id, 4), session_id, 2, 'SUCCEEDED', 1,
        now() - interval '9 days', now() - interval '9 days'
    from session.sessions where tenant_id = any (%(tenants)s)
    """,
    """
    insert into session.session_events (tenant_id, session_id, number, event_time, kind)
    select tenant_id, session_id, n, end_time + n * interval '1 second', 'RUN'
    from session.sessions, generate_series(1, 3) n where tenant_id = any (%(tenants)s)
    """,
    """
    insert into session.inbox_messages (tenant_id, session_id, key, text, acknowledge_time)
    select tenant_id, session_id, 'k', '', end_time from session.sessions
    where tenant_id = any (%(tenants)s)
    """,
    """
    insert into session.approvals (tenant_id, approval_id, session_id, run_id, agent_id, ancestor_ids,
        state, tool_name, arguments_json, on_expiry, create_time, expire_time)
    select tenant_id, 'apr' || substr(session_id, 4), session_id, 'run' || substr(session_id, 4), 'default',
        ancestor_ids, 'DENIED', 'pay', '{}', 'DENY', end_time, end_time
    from session.sessions where tenant_id = any (%(tenants)s)
    """,
    """
    insert into session.output_sets (tenant_id, set_id, session_id, run_id, request_id, position, files,
        publish_time)
    select tenant_id, 'att' || substr(session_id, 4), session_id, 'run' || substr(session_id, 4), 'r', 1,
        '[{"name": "a", "size_bytes": 1, "sha256": "", "mime_type": ""}]', end_time
    from session.sessions where tenant_id = any (%(tenants)s)
    """,
    """
    insert into session.budgets (tenant_id, session_id, max_token_count, max_cost_micros,
        max_model_call_count, max_run_time, max_wait)
    select tenant_id, session_id, 1, 1, 1, '1 hour', '1 hour'
    from session.sessions where tenant_id = any (%(tenants)s)
    """,
    """
    insert into session.model_calls (tenant_id, call_id, session_id, run_id, largest_token_count,
        largest_cost_micros, budget_session_ids, root_session_id, create_time)
    select tenant_id, 'cal' || substr(session_id, 4), session_id, 'run' || substr(session_id, 4), 1, 1,
        array[session_id], session_id, end_time
    from session.sessions where tenant_id = any (%(tenants)s)
    """,
    """
    insert into session.schedules (tenant_id, name, schedule_id, cron, time_zone, spawn, overlap, catch_up,
        cursor_time)
    select tenant_id, 's-' || n, 'sch-' || n, '* * * * *', '', '', 'SKIP', 'NONE', now()
    from unnest(%(tenants)s::text[]) tenant_id, generate_series(1, 100) n
    """,
    """
    insert into session.schedule_firings (tenant_id, schedule_id, firing_id, due_time, fire_time, outcome)
    select tenant_id, 'sch-1', 'fir' || substr(session_id, 4), end_time, end_time, 'SPAWNED'
    from session.sessions where tenant_id = any (%(tenants)s)
    """,
    """
    insert into session.run_queue (tenant_id, run_id, due_time, expire_time)
    select tenant_id, 'run' || substr(session_id, 4), now() + interval '1 hour', now() + interval '1 hour'
    from session.sessions where tenant_id = any (%(tenants)s)
    """,
    """
    insert into session.jobs (tenant_id, kind, key, due_time)
    select tenant_id, 'delete_session', session_id, now() + interval '1 hour'
    from session.sessions where tenant_id = any (%(tenants)s)
    """,
    """
    with spawning as (
        insert into session.sessions (tenant_id, session_id, request_id, payload_hash, state, agent_id,
        label, model, mode, context, cleanup,
            runtime, parent_session_id, parent_run_id, ancestor_ids, run_timeout, task_hash, traceparent)
        select tenant_id, id, id, '', state,
            'default', '', '', 'RUN', 'ISOLATED', 'DELETE', 'SUBAGENT', '', '', '{}', '1 hour', '', ''
        from unnest(%(tenants)s::text[]) tenant_id,
            (values (%(being_spawned)s, 'PROVISIONING'), (%(idle)s, 'ACTIVE')) given (id, state)
        returning tenant_id, session_id, state
    )
    insert into session.jobs (tenant_id, kind, key, due_time)
    select tenant_id, 'undo_spawn', session_id, now() + interval '1 hour' from spawning
    where state = 'PROVISIONING'
    """,
)

_LIVE = (
    """
    insert into session.sessions (tenant_id, session_id, request_id, payload_hash, state, agent_id,
        label, model, mode, context, cleanup,
        runtime, parent_session_id, parent_run_id, ancestor_ids, run_timeout, task_hash, traceparent)
    select %(tenant)s, ids[n], 'live' || n, '', 'ACTIVE', 'default', '', '', 'RUN', 'ISOLATED', 'DELETE',
        'SUBAGENT',
        case when n > 1 then ids[n / 10 + 1] else '' end, '',
        case when n > 1 then array[ids[n / 10 + 1]] else '{}' end, '1 hour', '', ''
    from (select %(ids)s::text[] as ids) given, generate_series(1, cardinality(ids)) n
    """,
    """
    insert into session.runs (tenant_id, run_id, session_id, position, state, epoch, attempt_count,
        deadline_time)
    select %(tenant)s, 'run' || substr(session_id, 4), session_id, 2, 'RUNNING', 1, 1,
        now() + interval '1 hour'
    from unnest(%(ids)s::text[]) session_id
    """,
    """
    insert into session.inbox_messages (tenant_id, session_id, key, text)
    select %(tenant)s, %(ids)s[1], 'k' || n, '' from generate_series(1, cardinality(%(ids)s::text[])) n
    """,
    """
    insert into session.run_queue (tenant_id, run_id, runtime, agent_id, due_time, expire_time)
    select %(tenant)s, 'run' || substr(session_id, 4),
        case when is_external then 'EXTERNAL' else 'SUBAGENT' end, 'default',
        now() - case when is_external then (1 + random()) * interval '1 hour' else interval '1 minute' end,
        now() + interval '1 hour'
    from unnest(%(ids)s::text[]) with ordinality given (session_id, n),
        lateral (select n <= %(external)s) as of (is_external)
    """,
    """
    insert into session.jobs (tenant_id, kind, key, due_time)
    select %(tenant)s, 'delete_session', session_id, now() - interval '1 minute'
    from unnest(%(ids)s::text[]) session_id
    """,
)


@dataclass(frozen=True, slots=True)
class Grown:
    """A grown database, and the ids of its tenant's sessions: a root and its children."""

    app_dsn: str
    superuser_dsn: str
    session_ids: list[str]


def dsn_of(dsn: str, database: str, role: str = "") -> str:
    """Return the URL of that database on the same server, for that role or the same one."""
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{role}@" if role else parts.netloc, path=f"/{database}"))


def session_ids(tenant: str, count: int) -> list[str]:
    """Return this many well-formed ids, in order."""
    body = tenant.replace("-", "").replace("o", "0").replace("l", "1").replace("u", "v")
    return [f"ses_0{body}{n:0{25 - len(body)}}" for n in range(1, count + 1)]


def fill(link: psycopg.Connection[Any], tenants: Sequence[str], count: int) -> None:
    """Insert tenants of so many sessions, which have ended, each with what it had while it lived."""
    ids = [(tenant, session_id) for tenant in tenants for session_id in session_ids(tenant, count)]
    values = {
        "tenants": list(tenants),
        "tenant_of": [tenant for tenant, _ in ids],
        "ids": [session_id for _, session_id in ids],
        "being_spawned": BEING_SPAWNED,
        "idle": IDLE,
    }
    for statement in _FILL:
        link.execute(statement, values)


def come_alive(link: psycopg.Connection[Any], tenant: str, count: int, *, external: int = 0) -> list[str]:
    """Insert live sessions with up to ten children and a run each; the first has messages.

    The first `external` runs wait for external runners, and longer than the others.
    """
    ids = session_ids(f"{tenant}-live", count)
    for statement in _LIVE:
        link.execute(statement, {"tenant": tenant, "ids": ids, "external": external})
    return ids


def due_time_of(grown: Grown, run_id: str) -> datetime:
    """Return the due time of the entry that the run of the grown tenant has in the queue."""
    with psycopg.connect(grown.superuser_dsn) as link:
        query = "select due_time from session.run_queue where tenant_id = %s and run_id = %s"
        [due_time] = link.execute(query, (TENANT, run_id)).fetchone() or ()
    assert isinstance(due_time, datetime)
    return due_time


@contextmanager
def grown_database(superuser_dsn: str, *, others: int, size: int, count: int) -> Iterator[Grown]:
    """A fresh database with a tenant of `count` sessions.

    The planner knew `others` of `size` sessions each before it grew, or nothing.
    """
    database = f"grown_{uuid4().hex[:8]}"
    with psycopg.connect(superuser_dsn, autocommit=True) as server:
        if server.execute("select from pg_database where datname = %s", (_TEMPLATE,)).fetchone() is None:
            _make_template(superuser_dsn)
        names = sql.Identifier(database), sql.Identifier(_TEMPLATE)
        server.execute(sql.SQL("create database {} template {}").format(*names))
    try:
        with psycopg.connect(dsn_of(superuser_dsn, database), autocommit=True) as link:
            if others:
                with link.transaction():
                    fill(link, [f"t-{number:03}" for number in range(others)], size)
                link.execute("analyze")
            fill(link, [TENANT], count)
        app = dsn_of(superuser_dsn, database, "session")
        yield Grown(app, dsn_of(superuser_dsn, database), session_ids(TENANT, count))
    finally:
        with psycopg.connect(superuser_dsn, autocommit=True) as server:
            server.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(database)))


def _make_template(superuser_dsn: str) -> None:
    """Create the database of which each grown one is a copy: empty, and never analyzed."""
    app, owner = (dsn_of(superuser_dsn, _TEMPLATE, role) for role in ("session", "session_owner"))
    prepare_database(superuser_dsn, {"session": DatabaseUrls(app, owner)})
    migrate(owner, package="spawnmesh_session", schema="session")
    with psycopg.connect(dsn_of(superuser_dsn, _TEMPLATE), autocommit=True) as link:
        for table in TABLES:
            name = sql.Identifier("session", table)
            link.execute(sql.SQL("alter table {} set (autovacuum_enabled = false)").format(name))
