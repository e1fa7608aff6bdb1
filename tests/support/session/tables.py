"""The tables of the session service, read and changed as a superuser; and the sweep."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.rows import dict_row
from spawnmesh_runtime.process import start_process
from spawnmesh_session.app import make_sweeper, open_components
from spawnmesh_session.domain.job_kinds import CLEAN_UP_SPAWN, FOLLOW_UPS, UNDO_SPAWN
from spawnmesh_session.jobs.sweep import Sweeper

from tests.support.session.harness import Mesh
from tests.support.session.worker import job_worker_of

FORGET_SHARED_HOOKS = "delete from session.shared_hooks"
TERMINAL = ("SUCCEEDED", "FAILED", "TIMED_OUT", "KILLED")


@asynccontextmanager
async def superuser(postgres: Any) -> AsyncIterator[psycopg.AsyncConnection]:
    dsn = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as link:
        yield link


async def forget_shared_hooks(postgres: Any) -> None:
    """Let the hook service have said nothing about the hooks of all tenants: all are enabled."""
    async with superuser(postgres) as link:
        await link.execute(FORGET_SHARED_HOOKS)


@asynccontextmanager
async def sweeping(mesh: Mesh) -> AsyncIterator[Sweeper]:
    async with (
        start_process("session", mesh.settings) as process,
        open_components(process, mesh.settings) as components,
    ):
        yield make_sweeper(components, mesh.settings)


async def jobs_of(postgres: Any, tenant: str) -> list[str]:
    """Return the kinds of the tenant's jobs that follow starts and ends."""
    async with await psycopg.AsyncConnection.connect(
        postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    ) as link:
        rows = await (
            await link.execute(
                "select kind from session.jobs where tenant_id = %s and kind = any (%s) order by kind",
                (tenant, list(FOLLOW_UPS)),
            )
        ).fetchall()
    return [row[0] for row in rows]


async def swept(mesh: Mesh, postgres: Any, tenant: str) -> None:
    """Let the spawns of the tenant be due to be undone, undo them, and clean up after them."""
    async with (
        await psycopg.AsyncConnection.connect(
            postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?"), autocommit=True
        ) as link,
        job_worker_of(mesh.settings) as worker,
    ):
        for kind in (UNDO_SPAWN, CLEAN_UP_SPAWN):
            await link.execute(
                "update session.jobs set due_time = now() where tenant_id = %s and kind = %s",
                (tenant, kind),
            )
            await worker.run_due(kind)


async def rows(postgres: Any, query: str, *values: Any) -> list[dict[str, Any]]:
    dsn = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as link:
        return await (await link.execute(query, values)).fetchall()


async def assert_sound(postgres: Any, tenant: str, root: str) -> None:
    runs = await rows(
        postgres, "select run_id, session_id, state from session.runs where tenant_id = %s", tenant
    )
    events = await rows(
        postgres,
        "select session_id, number, kind, run_id, run_state from session.session_events where tenant_id = %s order by number",
        tenant,
    )
    sessions = await rows(
        postgres,
        "select session_id, state, parent_session_id from session.sessions where tenant_id = %s",
        tenant,
    )
    announced = await rows(
        postgres,
        "select session_id, key from session.inbox_messages where tenant_id = %s and child_session_id <> ''",
        tenant,
    )
    queue = await rows(postgres, "select run_id from session.run_queue where tenant_id = %s", tenant)
    assert {row["state"] for row in runs} <= set(TERMINAL)
    assert {row["state"] for row in sessions} <= {"CLOSED", "SPAWN_FAILED"}
    assert queue == []
    ends = Counter(
        event["run_id"] for event in events if event["kind"] == "RUN" and event["run_state"] in TERMINAL
    )
    assert ends == {row["run_id"]: 1 for row in runs}
    parents = {row["session_id"]: row["parent_session_id"] for row in sessions}
    announced_keys = Counter((row["session_id"], row["key"]) for row in announced)
    assert announced_keys == {
        (parents[row["session_id"]], f"announce:v1:{row['session_id']}:{row['run_id']}"): 1
        for row in runs
        if row["session_id"] != root
    }
    numbers: dict[str, list[int]] = {}
    for event in events:
        numbers.setdefault(event["session_id"], []).append(event["number"])
    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values())
