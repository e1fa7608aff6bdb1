"""Claims and the sweep when something is wrong with one run, or several act at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, Tenant, TenantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import ALL_TENANTS, Database
from spawnmesh_postgres.jobs.store import enqueue
from spawnmesh_postgres.listener import Listener
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy
from spawnmesh_session.domain.runs import outcome_of_lost
from spawnmesh_session.operations import follow_up_jobs
from spawnmesh_session.rpc.wait_session import wait_session
from spawnmesh_session.store import run_queue, runs

from tests.support.session.calls import another
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.tables import superuser, sweeping
from tests.support.session.worker import dependencies_of
from tests.support.waiting import eventually

MIB = 1024 * 1024


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__run_that_cannot_be_handed_out_keeps_no_other_and_is_failed(
    open_mesh: OpenMesh, postgres: Any
) -> None:
    async with open_mesh(lease_ttl_seconds=1.5, max_run_attempts=1) as mesh:
        await mesh.create_tenant()
        poisoned = await mesh.spawn()
        async with superuser(postgres) as link:
            later_than_the_next_epoch = (
                "update session.runs set epoch = 10, first_epoch = 10 where tenant_id = %s"
            )
            await link.execute(later_than_the_next_epoch, (mesh.tenant,))
        healthy = another(mesh)
        await healthy.create_tenant()
        session = await healthy.spawn()
        claimed = [held.session.session_id for held in await mesh.claim_any(limit=64)]
        assert (session.session_id in claimed, poisoned.session_id in claimed) == (True, False)
        async with sweeping(mesh) as sweep:

            async def failed() -> bool:
                await sweep.end_lost_runs()
                return bool(
                    (await mesh.get(poisoned.session_id)).latest_run.state == session_pb2.RUN_STATE_FAILED
                )

            await eventually(failed)


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__claims_at_once_do_not_exceed_the_tenants_limit(mesh: Mesh) -> None:
    own = another(mesh)
    await own.create_tenant(settings=TenantSettings(max_running_run_count=5))
    spawned = {(await own.spawn()).session_id for _ in range(20)}
    claims = await asyncio.gather(*(own.claim_any(wait_seconds=0.2, limit=2) for _ in range(12)))
    claimed = [
        held.session.session_id for claim in claims for held in claim
    ]  # Also what earlier tests let go of.
    assert len(spawned.intersection(claimed)) == 5


async def test_ClaimRuns__another_claim_that_is_handing_out_a_crowded_tenants_runs_is_left_to_it(
    mesh: Mesh, postgres: Any
) -> None:
    """Both would count the same runs as held, and hand out as many again."""
    own = another(mesh)
    await own.create_tenant(settings=TenantSettings(max_running_run_count=1))
    spawned = {(await own.spawn()).session_id for _ in range(2)}

    async def claimed() -> set[str]:
        return {held.session.session_id for held in await own.claim_any(wait_seconds=0.0, limit=64)} & spawned

    async with superuser(postgres) as link:
        async with link.transaction():
            name = f"hand out runs of {own.tenant}"
            await link.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (name,))
            assert await claimed() == set()
        assert len(await claimed()) == 1


@pytest.mark.usefixtures("empty_queue")
async def test_an_end_wakes_runners_where_a_run_has_waited_for_it(mesh: Mesh, postgres: Any) -> None:
    """The end of a run wakes runners if its tenant is at the limit of running runs."""
    own = another(mesh)
    await own.create_tenant(settings=TenantSettings(max_running_run_count=1))
    for _ in range(4):
        await own.spawn()
    async with superuser(postgres) as link:
        row = await (await link.execute("select suffix from session._spawnmesh_channels")).fetchone()
        assert row is not None
        channel = sql.Identifier(f"run_queued{row[0]}")

        async def wakes(claimed: run_pb.ClaimedRun) -> bool:
            """Return whether runners are notified when the claimed run ends."""
            await link.execute(sql.SQL("listen {}; listen control").format(channel))
            request = pb.KillSessionRequest(session_id=claimed.session.session_id)
            await own.client(own.sessions.KillSession, request)
            # Notifications arrive in the order of their commits.
            await link.execute("select pg_notify('control', '')")
            heard = []
            async with aclosing(link.notifies(timeout=60.0)) as notifies:
                async for notify in notifies:
                    heard.append(notify.channel)
                    if notify.channel == "control":
                        break
            await link.execute("unlisten *")
            return heard != ["control"]

        [first] = await own.claim_any()
        assert await wakes(first)
        raised = tenant_pb.UpdateTenantRequest(
            tenant=Tenant(tenant_id=own.tenant, settings=TenantSettings(max_running_run_count=3))
        )
        raised.update_mask.paths.append("settings.max_running_run_count")
        await own.operator("UpdateTenant", raised)
        [second] = await own.claim_any()
        assert not await wakes(second), "the others might have begun before"
        third, fourth = await own.claim_any(limit=2)
        assert [await wakes(third), await wakes(fourth)] == [False, False], "none waits"


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__answer_is_never_too_large_to_be_heard(mesh: Mesh) -> None:
    """Sixty-four prompts of 256 KiB do not fit into one response."""
    own = another(mesh)
    await own.create_tenant(settings=TenantSettings(max_running_run_count=100))
    await own.put_agent(AgentProfile(agent_id="wordy", system_prompt="x" * 262_144))
    wordy = {(await own.spawn(agent_id="wordy")).session_id for _ in range(70)}
    first = await own.claim_any(limit=64)
    assert 0 < len(first) < 64
    claimed = list(first)
    while more := await own.claim_any(wait_seconds=0.0, limit=64):
        claimed += more
    claimed = [
        held for held in claimed if held.session.session_id in wordy
    ]  # Not what earlier tests let go of.
    assert len(claimed) == 70
    assert {held.run.attempt_count for held in claimed} == {1}


async def test_sweep__run_that_cannot_be_ended_keeps_no_other(open_mesh: OpenMesh, postgres: Any) -> None:
    async with open_mesh() as mesh, superuser(postgres) as link, sweeping(mesh) as sweep:
        await mesh.create_tenant()
        broken = f"t-{uuid4().hex[:12]}"
        insert = """
            insert into session.run_queue (tenant_id, run_id, due_time, expire_time)
            select %s, 'gone_' || i, now() - interval '1 day', now() - interval '1 day'
            from generate_series(1, 40) i"""
        await link.execute(insert, (broken,))
        session = await mesh.spawn()
        await link.execute(
            "update session.run_queue set expire_time = now() where tenant_id = %s", (mesh.tenant,)
        )
        try:

            async def timed_out() -> bool:
                await sweep.end_lost_runs()
                return bool(
                    (await mesh.get(session.session_id)).latest_run.state == session_pb2.RUN_STATE_TIMED_OUT
                )

            assert await timed_out(), "in one sweep"
        finally:
            await link.execute("delete from session.run_queue where tenant_id = %s", (broken,))


async def test_sweep__run_kept_or_released_meanwhile_is_not_lost(
    open_mesh: OpenMesh, session_database: Database
) -> None:
    async with open_mesh(lease_ttl_seconds=0.2, max_run_attempts=1) as mesh:
        await mesh.create_tenant()
        held = await mesh.claim((await mesh.spawn()).session_id)
        run_id = held.run.run_id
        taken: list[Any] = []

        async def expired() -> bool:
            async with session_database.transaction(ALL_TENANTS) as connection:
                quota = run_queue.TakeQuota(limit=64, share=16)
                lost = await run_queue.take_lost_runs(
                    connection, quota, timedelta(seconds=5), timedelta(seconds=0.2)
                )
            taken.extend(one for one in lost if one.run_id == run_id)
            return bool(taken)

        async def is_lost() -> bool:
            async with session_database.transaction(mesh.tenant) as connection:
                entry = await run_queue.lock_lost_entry(connection, taken[0])
                return outcome_of_lost(await runs.get_run(connection, mesh.tenant, run_id), entry) is not None

        await eventually(expired)
        assert await is_lost()
        await mesh.run(held, mesh.runs.HeartbeatRun, run_pb.HeartbeatRunRequest(epoch=held.run.epoch))
        assert not await is_lost()


async def test_sweep__run_whose_deadline_passes_while_it_waits_for_the_lock_is_timed_out(
    open_mesh: OpenMesh, postgres: Any
) -> None:
    async with open_mesh(lease_ttl_seconds=0.2, max_run_attempts=1) as mesh:
        await mesh.create_tenant()
        held = await mesh.claim((await mesh.spawn()).session_id)
        async with sweeping(mesh) as sweep, superuser(postgres) as link, superuser(postgres) as other:

            async def ended() -> session_pb2.Run | None:
                await sweep.end_lost_runs()
                run = (await mesh.get(held.session.session_id)).latest_run
                return run if run.end_time.seconds else None

            async def is_taken() -> bool:
                query = "select again_time is not null from session.run_queue where run_id = %s"
                row = await (await link.execute(query, (held.run.run_id,))).fetchone()
                assert row is not None
                return bool(row[0])

            async with other.transaction():
                lock = "select from session.sessions where session_id = %s for update"
                await other.execute(lock, (held.session.session_id,))
                ending = asyncio.create_task(eventually(ended))
                await eventually(is_taken)
                await link.execute(
                    "update session.run_queue set expire_time = now() where run_id = %s", (held.run.run_id,)
                )
            run = await ending
    assert run is not None
    assert (run.state, run.error_reason) == (session_pb2.RUN_STATE_TIMED_OUT, reason_pb2.REASON_RUN_TIMEOUT)


async def test_SpawnSession__stale_runner_spawns_nothing_and_the_new_one_gets_the_old_ones_session(
    open_mesh: OpenMesh,
) -> None:
    async with open_mesh(lease_ttl_seconds=0.3) as mesh:
        await mesh.create_tenant()
        session = await mesh.spawn()
        old = await mesh.claim(session.session_id)
        request = {"request_id": uuid4().hex, "task": "count"}
        child = await mesh.spawn_as(old, **request)
        new = await mesh.claim(session.session_id)
        assert (await mesh.spawn_as(new, **request)).session_id == child.session_id
        with pytest.raises(MeshError) as caught:
            await mesh.spawn_as(old)
        assert caught.value.reason is Reason.RUN_LEASE_LOST


class CountingDatabase:
    """The database, and how many used it at once."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now, self.most = 0, 0

    @asynccontextmanager
    async def pipelined(self, tenant_id: str) -> AsyncIterator[Any]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            async with self.database.pipelined(tenant_id) as connection:
                yield connection
        finally:
            self.now -= 1


async def test_WaitSession__hundreds_woken_at_once_leave_connections_to_others(
    mesh: Mesh, session_database: Database
) -> None:
    session = await mesh.spawn()
    counting: Any = CountingDatabase(session_database)
    listener = Listener()
    caller = Caller(CallerKind.CLIENT, "test", mesh.tenant)
    request = pb.WaitSessionRequest(session_id=session.session_id)
    request.timeout.FromSeconds(20)
    async with dependencies_of(mesh.settings) as own:
        limit = FairLimiter(LimiterPolicy("reads", "", 4))
        deps = replace(own, database=counting, listener=listener, watch_limit=limit)
        waiters = [asyncio.create_task(wait_session(request, caller, deps)) for _ in range(300)]
        await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session.session_id))
        listener.wake_all()
        answers = await asyncio.gather(*waiters)
    assert {answer.session.state for answer in answers} == {session_pb2.SESSION_STATE_CLOSED}
    assert counting.most == 2


async def test_job_that_cannot_be_enqueued_raises_the_drivers_own_error(
    open_mesh: OpenMesh, session_database: Database
) -> None:
    """A lost race or connection is answered as for every other statement."""
    async with session_database.transaction("t-nobody") as connection:
        with pytest.raises(psycopg.Error):
            await connection.execute("select 1 / 0")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            await enqueue(connection, "t-nobody", follow_up_jobs.release_attachments("ses_1", ""))


async def test_ListInbox__large_messages_come_in_parts(mesh: Mesh) -> None:
    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    for number in range(14):
        request = pb.SendMessageRequest(
            session_id=session.session_id, request_id=f"m{number:02}", text="x" * MIB
        )
        await mesh.client(mesh.sessions.SendMessage, request)
    seen: list[str] = []
    while messages := (await mesh.run(held, mesh.runs.ListInbox, run_pb.ListInboxRequest())).messages:
        keys = [message.key for message in messages]
        seen += keys
        taken = run_pb.AcknowledgeInboxRequest(epoch=held.run.epoch, keys=keys)
        await mesh.run(held, mesh.runs.AcknowledgeInbox, taken)
    assert seen == [f"message:v1:m{number:02}" for number in range(14)]


async def test_ListSessions__large_results_come_in_parts(mesh: Mesh, postgres: Any) -> None:
    spawned = [(await mesh.spawn()).session_id for _ in range(20)]
    async with superuser(postgres) as link:
        await link.execute(
            "update session.runs set result_text = repeat('x', 1048576) where tenant_id = %s", (mesh.tenant,)
        )
        await link.execute("delete from session.run_queue where tenant_id = %s", (mesh.tenant,))
    listed: list[str] = []
    token = ""
    while True:
        request = pb.ListSessionsRequest(view=session_pb2.SESSION_VIEW_FULL, page_token=token)
        page = await mesh.client(mesh.sessions.ListSessions, request)
        listed += [session.session_id for session in page.sessions]
        token = page.next_page_token
        if not token:
            break
    assert listed == sorted(spawned, reverse=True)


@pytest.mark.parametrize("name", ["Ä", "a" * 64, "a\x00", "**"])
async def test_UpdateAgent__spawnable_agent_that_cannot_exist(mesh: Mesh, name: str) -> None:
    with pytest.raises(MeshError) as caught:
        await mesh.put_agent(AgentProfile(agent_id="a", spawnable_agents=["*", name]))
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.violations[0].field == "agent.spawnable_agents[1]"
