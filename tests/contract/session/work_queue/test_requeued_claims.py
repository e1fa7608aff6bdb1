"""Claims whose caller is gone, and claims of runs that have ended."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.event_pb2 import HOOK_KIND_DELIVERY_TARGET
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_session.app import make_sweeper

from tests.support.serving import caller_at, client_tokens
from tests.support.session.calls import kill
from tests.support.session.drafting import draft
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.remains import Remains
from tests.support.session.worker import components_of, work_once
from tests.support.waiting import eventually

_LOCK = "select from session.sessions where tenant_id = %s and session_id = any (%s) for update"
_WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%for no key update%'"


@asynccontextmanager
async def held_up(
    remains: Remains, tenant: str, session_ids: list[str]
) -> AsyncIterator[psycopg.AsyncConnection]:
    """Spawn sessions that no runner works on."""
    async with await psycopg.AsyncConnection.connect(remains.dsn) as link:
        await link.execute(_LOCK, (tenant, session_ids))
        yield link


async def waits(remains: Remains) -> bool:
    async with await psycopg.AsyncConnection.connect(remains.dsn) as link:
        row = await (await link.execute(_WAITING)).fetchone()
    return row is not None and row[0] > 0


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__runner_that_went_away_costs_its_runs_neither_attempt_nor_lease(
    open_mesh: OpenMesh, remains: Remains
) -> None:
    async with open_mesh(max_run_attempts=1, lease_ttl_seconds=3600.0) as mesh:
        await mesh.create_tenant()
        first, second = (await mesh.spawn()).session_id, (await mesh.spawn()).session_id
        async with held_up(remains, mesh.tenant, [second]):
            claiming = asyncio.create_task(mesh.claim_any(limit=64))
            await eventually(lambda: waits(remains))
            claiming.cancel()
            await asyncio.wait([claiming])

        async def is_released() -> bool:
            states = {(await mesh.get(session_id)).latest_run.state for session_id in (first, second)}
            return states == {session_pb2.RUN_STATE_QUEUED}

        await eventually(is_released)
        claims: dict[str, tuple[int, int]] = {}
        async with asyncio.timeout(60):
            while len(claims) < 2:  # They come in any order, together or one by one.
                for held in await mesh.claim_any(limit=64):
                    claims[held.session.session_id] = (held.run.attempt_count, held.run.epoch)
        assert claims == {first: (1, 2), second: (1, 2)}, "the claim whose response was lost stays fenced off"


async def is_free(mesh: Mesh, transcript_target: str, session_id: str) -> bool:
    """Return whether no run is the transcript's writer, as a client sees it."""
    async with caller_at(transcript_target, "transcript") as transcript:
        with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
            stub: Any = TranscriptServiceStub(transcript.channel)
            page = await transcript.unary(
                stub.ListEntries, transcript_pb.ListEntriesRequest(session_id=session_id), timeout_seconds=60
            )
    return not page.head.writer_run_id


async def test_KillSession__no_run_is_the_transcripts_writer_any_more(
    mesh: Mesh, peers: dict[str, str]
) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    async with caller_at(peers["transcript"], "transcript") as transcript:
        await draft(transcript, held, "42")
    assert not await is_free(mesh, peers["transcript"], held.session.session_id)
    await kill(mesh, held.session.session_id)
    assert await is_free(mesh, peers["transcript"], held.session.session_id)


async def test_sweep__transcript_of_a_run_whose_every_runner_was_lost_has_no_writer(
    open_mesh: OpenMesh, peers: dict[str, str], remains: Remains
) -> None:
    async with open_mesh(max_run_attempts=1, lease_ttl_seconds=0.5) as mesh:
        await mesh.create_tenant()
        held = await mesh.claim((await mesh.spawn()).session_id)
        async with caller_at(peers["transcript"], "transcript") as transcript:
            await draft(transcript, held, "42")

        async def lost() -> bool:
            async with components_of(mesh.settings) as components:
                await make_sweeper(components, mesh.settings).end_lost_runs()
            return bool(
                (await mesh.get(held.session.session_id)).latest_run.state == session_pb2.RUN_STATE_FAILED
            )

        await eventually(lost)
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
        assert await is_free(mesh, peers["transcript"], held.session.session_id)


async def test_run_that_has_ended_writes_no_more_while_a_plugin_is_down(
    mesh: Mesh, peers: dict[str, str], remains: Remains
) -> None:
    """A plugin that names the delivery target of ended runs."""
    held = await mesh.claim((await mesh.spawn()).session_id)
    down = hook_pb.Plugin(
        name="down",
        endpoint="grpc://127.0.0.1:1",
        hooks=[HOOK_KIND_DELIVERY_TARGET],
        failure_policy=hook_pb.FAILURE_POLICY_CLOSED,
    )
    async with (
        caller_at(peers["transcript"], "transcript") as transcript,
        caller_at(peers["hook"], "hook") as hook,
    ):
        with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
            stub: Any = HookServiceStub(hook.channel)
            await hook.unary(
                stub.UpdatePlugin,
                hook_pb.UpdatePluginRequest(allow_missing=True, plugin=down, allow_unreachable=True),
                timeout_seconds=60,
            )
        await mesh.run(held, mesh.runs.FinalizeRun, await draft(transcript, held, "42"))
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
        with pytest.raises(MeshError) as caught:
            await draft(transcript, held, "43")
    assert caught.value.reason is Reason.WRITER_CLAIM_LOST


@pytest.mark.parametrize("mode", [session_pb2.SESSION_MODE_RUN, session_pb2.SESSION_MODE_SESSION])
@pytest.mark.parametrize("ending", ["finalized", "failed"])
async def test_run_that_has_ended_writes_no_more_where_its_runner_keeps_the_claim(
    mesh: Mesh,
    peers: dict[str, str],
    remains: Remains,
    mode: "session_pb2.SessionMode.ValueType",
    ending: str,
) -> None:
    held = await mesh.claim((await mesh.spawn(mode=mode)).session_id)
    async with caller_at(peers["transcript"], "transcript") as transcript:
        offered = await draft(transcript, held, "42")
        if ending == "finalized":
            await mesh.run(held, mesh.runs.FinalizeRun, offered)
        else:
            await mesh.run(
                held,
                mesh.runs.FailRun,
                run_pb.FailRunRequest(epoch=held.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR),
            )
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
        assert await is_free(mesh, peers["transcript"], held.session.session_id)
        with pytest.raises(MeshError) as caught:
            await draft(transcript, held, "43")
    assert caught.value.reason is Reason.WRITER_CLAIM_LOST


async def failed(mesh: Mesh, held: run_pb.ClaimedRun, _remains: Remains) -> None:
    await mesh.run(
        held,
        mesh.runs.FailRun,
        run_pb.FailRunRequest(epoch=held.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR),
    )


async def released_and_killed(mesh: Mesh, held: run_pb.ClaimedRun, _remains: Remains) -> None:
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    await kill(mesh, held.session.session_id)


async def ended_by_the_sweep(mesh: Mesh, held: run_pb.ClaimedRun, remains: Remains, over: str) -> None:
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as superuser:
        where = "where tenant_id = %s and run_id = %s"
        await superuser.execute(
            f"update session.run_queue set {over} {where}", (mesh.tenant, held.run.run_id)
        )
        await superuser.execute("update session.service_uptime set serving_since = now() - interval '1 day'")
    async with components_of(mesh.settings) as components:
        while await make_sweeper(components, mesh.settings).end_lost_runs():
            pass


async def timed_out(mesh: Mesh, held: run_pb.ClaimedRun, remains: Remains) -> None:
    await ended_by_the_sweep(mesh, held, remains, "expire_time = now()")


async def lost_by_every_runner(mesh: Mesh, held: run_pb.ClaimedRun, remains: Remains) -> None:
    await ended_by_the_sweep(mesh, held, remains, "due_time = now(), attempts_left = 0")


@pytest.mark.parametrize(
    "end", [failed, released_and_killed, timed_out, lost_by_every_runner], ids=lambda end: end.__name__
)
async def test_run_that_has_ended_before_it_wrote_never_becomes_the_writer(
    mesh: Mesh,
    peers: dict[str, str],
    remains: Remains,
    end: Callable[[Mesh, run_pb.ClaimedRun, Remains], Awaitable[None]],
) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    await end(mesh, held, remains)
    assert (await mesh.get(held.session.session_id)).state == session_pb2.SESSION_STATE_CLOSED
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    async with caller_at(peers["transcript"], "transcript") as transcript:
        with pytest.raises(MeshError) as caught:
            await draft(transcript, held, "behind the end")
    assert caught.value.reason is Reason.WRITER_CLAIM_LOST
    assert await is_free(mesh, peers["transcript"], held.session.session_id)
