"""Jobs whose worker was killed."""

import asyncio
from uuid import uuid4

import psycopg
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_postgres.jobs import open_job_app, run_job_worker
from spawnmesh_session.app import make_sweeper
from spawnmesh_session.jobs.tasks import Backoff

from tests.support.session.harness import Mesh, attachment
from tests.support.session.remains import Remains
from tests.support.session.worker import components_of

_WORKER = (
    "insert into session.procrastinate_workers (last_heartbeat) values (now() - %s::interval) returning id"
)
_TAKE = """
update session.procrastinate_jobs set status = 'doing', worker_id = %s
where id = (select id from session.procrastinate_jobs where status = 'todo'
    and args ->> 'tenant_id' = %s limit 1)
"""
_SETTLED = "update tenant_deletions set settle_time = now() where tenant_id = %s"
_STEP = "select step from tenant_deletions where tenant_id = %s"
_STATUS = "select status::text from session.procrastinate_jobs where task_name = %s"
_HELD = (
    "select worker_id from session.procrastinate_jobs where status = 'doing' and args ->> 'tenant_id' = %s"
)


async def test_jobs_of_a_worker_that_was_killed_are_worked_on_again(mesh: Mesh, remains: Remains) -> None:
    session = await mesh.spawn(attachments=[attachment()], label=uuid4().hex)
    await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session.session_id))
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
        await link.execute("set search_path to session")
        workers = []
        for silent_for in ("1 hour", "1 second"):
            row = await (await link.execute(_WORKER, (silent_for,))).fetchone()
            assert row is not None
            workers.append(row[0])
        # The last one's row was removed by a worker that began since.
        for worker in (*workers, None):
            await link.execute(_TAKE, (worker, mesh.tenant))
        async with components_of(mesh.settings) as components:
            assert await make_sweeper(components, mesh.settings).revive_jobs() >= 2
        held = await (await link.execute(_HELD, (mesh.tenant,))).fetchall()
        assert [row[0] for row in held] == [workers[1]]
        await link.execute(
            "delete from session.procrastinate_jobs where args ->> 'tenant_id' = %s", (mesh.tenant,)
        )
        await link.execute("delete from session.procrastinate_workers where id = any (%s)", (workers,))


async def test_a_worker_that_is_stopped_gives_back_what_takes_too_long(mesh: Mesh, remains: Remains) -> None:
    begun = asyncio.Event()

    async def hang(**_: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    name = f"hang_{uuid4().hex}"
    app = open_job_app(mesh.settings.database_url, name="test jobs")
    app.task(name=name, queue=name, retry=Backoff())(hang)
    async with app.open_async():
        await app.configure_task(name).defer_async(tenant_id=mesh.tenant)
    app = open_job_app(mesh.settings.database_url, name="test jobs")
    app.task(name=name, queue=name, retry=Backoff())(hang)
    working = asyncio.create_task(run_job_worker(app, concurrency=1, grace_seconds=0.2))
    async with asyncio.timeout(20):
        await begun.wait()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
        status = await (await link.execute(_STATUS, (name,))).fetchone()
        await link.execute("set search_path to session")
        await link.execute("delete from procrastinate_jobs where task_name = %s", (name,))
    assert status == ("todo",)


async def test_DeleteTenant__waits_for_a_job_that_was_tried_again_just_before_it_had_settled(
    mesh: Mesh, remains: Remains
) -> None:
    session = await mesh.spawn(attachments=[attachment()])
    await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session.session_id))
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
        await link.execute("set search_path to session")
        row = await (await link.execute(_WORKER, ("1 second",))).fetchone()
        assert row is not None
        await link.execute(_TAKE, (row[0], mesh.tenant))
        await mesh.delete_tenant()
        async with components_of(mesh.settings) as components:
            purge = make_sweeper(components, mesh.settings).purge
            for _ in range(2):  # It takes longer than was thought.
                await purge.purge(mesh.tenant)
                await link.execute(_SETTLED, (mesh.tenant,))
            assert (await (await link.execute(_STEP, (mesh.tenant,))).fetchone()) == ("SETTLE",)
            assert (await remains.of(mesh.tenant))["objects"] == 1
            await link.execute(
                "delete from procrastinate_jobs where args ->> 'tenant_id' = %s", (mesh.tenant,)
            )
            await purge.advance(mesh.tenant)
        assert (await (await link.execute(_STEP, (mesh.tenant,))).fetchone()) != ("SETTLE",)
        await link.execute("delete from procrastinate_workers where id = %s", row)
