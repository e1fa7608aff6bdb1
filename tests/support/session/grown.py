"""A database of the session service with a tenant that grew after the last analyze."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
from psycopg import sql
from spawnmesh_postgres.jobs import install_job_tables
from spawnmesh_postgres.migrations import migrate
from spawnmesh_postgres.roles import DatabaseUrls, prepare_database

TENANT = "t-grown"
BEING_SPAWNED = "ses~being-spawned"
TABLES = ("tenants", "sessions", "runs", "work_queue", "inbox_messages", "session_events", "agents")

FILL_TENANT = (
    """
    insert into session.agents (tenant_id, agent_id, system_prompt, models, tools, spawnable_agents,
        max_turn_count, context_token_budget)
    values (%(tenant)s, 'default', '', '{}', '{}', '{}', 0, 0)
    """,
    """
    insert into session.tenants (tenant_id, display_name, settings, max_running_run_count, ready)
    values (%(tenant)s, '', '{"deleteAfter": "86400s"}', 32, true)
    """,
)
"""The tenant and its agent."""

_FILL = (
    *FILL_TENANT,
    """
    insert into session.sessions (tenant_id, session_id, request_id, payload_hash, state, agent_id,
        label, model, mode, context, cleanup,
        runtime, parent_session_id, parent_run_id, ancestor_ids, run_timeout, task_hash, traceparent,
        last_cursor, create_time, end_time)
    select %(tenant)s, ids[n], 'r' || n || %(tenant)s, '', 'CLOSED', 'default', '', '', 'RUN',
        'ISOLATED', 'DELETE', 'SUBAGENT',
        case when n > 1 then ids[1] else '' end, '', case when n > 1 then ids[:1] else '{}' end,
        '1 hour', '', '', 3,
        now() - interval '10 days', now() - interval '9 days' + n * interval '1 second'
    from (select %(ids)s::text[] as ids) given, generate_series(1, cardinality(ids)) n
    """,
    """
    insert into session.runs (tenant_id, run_id, session_id, state, epoch, deadline_time, end_time)
    select tenant_id, 'run' || substr(session_id, 4), session_id, 'SUCCEEDED', 1,
        now() - interval '9 days', now() - interval '9 days'
    from session.sessions where tenant_id = %(tenant)s
    """,
    """
    insert into session.session_events (tenant_id, session_id, cursor, event_time, kind)
    select tenant_id, session_id, n, end_time + n * interval '1 second', 'RUN'
    from session.sessions, generate_series(1, 3) n where tenant_id = %(tenant)s
    """,
    """
    insert into session.inbox_messages (tenant_id, session_id, key, text, acknowledge_time)
    select tenant_id, session_id, 'k', '', end_time from session.sessions where tenant_id = %(tenant)s
    """,
    """
    insert into session.work_queue (tenant_id, kind, subject_id, due_time, expire_time)
    select tenant_id, kind, kind || substr(session_id, 4), now() + interval '1 hour',
        now() + interval '1 hour'
    from session.sessions, unnest(array['RUN', 'DELETE']) kind where tenant_id = %(tenant)s
    """,
    """
    with spawning as (
        insert into session.sessions (tenant_id, session_id, request_id, payload_hash, state, agent_id,
        label, model, mode, context, cleanup,
            runtime, parent_session_id, parent_run_id, ancestor_ids, run_timeout, task_hash, traceparent)
        values (%(tenant)s, %(being_spawned)s, %(being_spawned)s, '', 'PROVISIONING', 'default', '', '',
        'RUN', 'ISOLATED', 'DELETE', 'SUBAGENT',
            '', '', '{}', '1 hour', '', '')
        returning tenant_id, session_id
    )
    insert into session.work_queue (tenant_id, kind, subject_id, due_time)
    select tenant_id, 'SPAWN', session_id, now() + interval '1 hour' from spawning
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
    insert into session.runs (tenant_id, run_id, session_id, state, epoch, deadline_time)
    select %(tenant)s, 'run' || substr(session_id, 4), session_id, 'RUNNING', 1, now() + interval '1 hour'
    from unnest(%(ids)s::text[]) session_id
    """,
    """
    insert into session.inbox_messages (tenant_id, session_id, key, text)
    select %(tenant)s, %(ids)s[1], 'k' || n, '' from generate_series(1, cardinality(%(ids)s::text[])) n
    """,
    """
    insert into session.work_queue (tenant_id, kind, subject_id, due_time, expire_time)
    select %(tenant)s, kind, kind || substr(session_id, 4), now() - interval '1 minute',
        now() + interval '1 hour'
    from unnest(%(ids)s::text[]) session_id, unnest(array['RUN', 'DELETE']) kind
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


def fill(link: psycopg.Connection[Any], tenant: str, count: int) -> list[str]:
    """A tenant of so many sessions, which have ended, each with what it had while it lived."""
    ids = session_ids(tenant, count)
    for statement in _FILL:
        link.execute(statement, {"tenant": tenant, "ids": ids, "being_spawned": BEING_SPAWNED})
    return ids


def come_alive(link: psycopg.Connection[Any], tenant: str, count: int) -> list[str]:
    """Insert live sessions with up to ten children and a run each; the first has messages."""
    ids = session_ids(f"{tenant}-live", count)
    for statement in _LIVE:
        link.execute(statement, {"tenant": tenant, "ids": ids})
    return ids


@contextmanager
def grown_database(superuser_dsn: str, *, others: int, size: int, count: int) -> Iterator[Grown]:
    """A fresh database with a tenant of `count` sessions.

    The planner knew `others` of `size` sessions each before it grew, or nothing.
    """
    database = f"grown_{uuid4().hex[:8]}"
    app, owner = (dsn_of(superuser_dsn, database, role) for role in ("session", "session_owner"))
    prepare_database(superuser_dsn, {"session": DatabaseUrls(app, owner)})
    try:
        install_job_tables(owner)
        migrate(owner, package="spawnmesh_session", schema="session")
        with psycopg.connect(dsn_of(superuser_dsn, database), autocommit=True) as link:
            for table in TABLES:
                link.execute(
                    sql.SQL("alter table {} set (autovacuum_enabled = false)").format(
                        sql.Identifier("session", table)
                    )
                )
            with link.pipeline(), link.transaction():
                for number in range(others):
                    fill(link, f"t-{number:03}", size)
            if others:
                link.execute("analyze")
            ids = fill(link, TENANT, count)
        yield Grown(app, dsn_of(superuser_dsn, database), ids)
    finally:
        with psycopg.connect(superuser_dsn, autocommit=True) as server:
            server.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(database)))
