"""Spawns of due times that fail: for good, or until they can be done."""

from datetime import timedelta
from typing import Any

import pytest
from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, TenantSettings
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh_core.reasons import Reason

from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.session.schedules import (
    ALLOW,
    DAY,
    FAILED,
    REPLACE,
    SPAWNED,
    Clockwork,
    times_of,
)


async def test_a_spawn_that_fails_for_good_is_failed_and_the_next_one_fires(clockwork: Clockwork) -> None:
    await clockwork.mesh.put_agent(AgentProfile(agent_id="analyst"))
    await clockwork.put_daily(spawn=pb.ScheduledSpawn(task="a", agent_id="analyst"))
    await clockwork.mesh.client(
        TenantServiceStub(clockwork.mesh.peer.channel).DeleteAgent,
        tenant_pb.DeleteAgentRequest(agent_id="analyst"),
    )
    await clockwork.pass_time(2 * DAY)
    async with clockwork.attempts() as attempt:
        await attempt()
        [failed] = await clockwork.history()
        assert (failed.outcome, failed.session_id) == (FAILED, "")
        assert failed.error_reason == Reason.UNKNOWN_AGENT
        assert "analyst" in failed.error_message
        assert await clockwork.sessions() == []
        await clockwork.mesh.put_agent(AgentProfile(agent_id="analyst"))
        await attempt()
    assert await clockwork.outcomes() == [FAILED, SPAWNED]


async def test_a_schedule_with_files_that_are_gone_is_failed(clockwork: Clockwork) -> None:
    references = [{"set_id": "att_" + "0" * 26, "name": "a.txt"}]
    await clockwork.put_daily(spawn=pb.ScheduledSpawn(task="a", references=references))
    await clockwork.pass_time(DAY)
    await clockwork.fire()
    [failed] = await clockwork.history()
    assert (failed.outcome, bool(failed.error_reason), bool(failed.error_message)) == (FAILED, True, True)


@pytest.fixture
async def full(mesh: Mesh, postgres: Any) -> Clockwork:
    """A tenant whose queue is full, and a schedule with a due time."""
    own = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await own.create_tenant(settings=TenantSettings(max_queued_run_count=1))
    clockwork = Clockwork(own, postgres)
    await clockwork.put_daily()
    await own.spawn()
    await clockwork.pass_time(DAY)
    await clockwork.fire()
    return clockwork


async def test_a_spawn_is_tried_again_while_the_queue_is_full(full: Clockwork) -> None:
    for _ in range(2):
        await full.make_due()
        await full.fire()
    assert await full.history() == []
    [job] = await full.jobs()
    assert (job["attempt_count"], job["dead_time"]) == (3, None)
    [waiting] = await full.sessions()
    await full.kill(waiting.session_id)
    await full.make_due()
    await full.fire()
    [fired] = await full.history()
    assert fired.outcome == SPAWNED
    assert len(await full.sessions()) == 2


async def test_a_spawn_that_fails_for_ten_minutes_is_failed(full: Clockwork) -> None:
    await full.age_firings(timedelta(minutes=9))
    await full.make_due()
    await full.fire()
    assert await full.history() == []
    await full.age_firings(timedelta(minutes=1))
    await full.make_due()
    await full.fire()
    [failed] = await full.history()
    assert (failed.outcome, failed.error_reason) == (FAILED, Reason.RUN_QUEUE_FULL)
    assert await full.jobs() != [], "the next due time is fired"


async def test_a_pause_drops_a_spawn_that_is_tried_again(full: Clockwork) -> None:
    await full.pause()
    await full.resume()
    [waiting] = await full.sessions()
    await full.kill(waiting.session_id)
    await full.make_due()
    await full.fire()
    assert await full.history() == []


async def test_a_due_time_that_passes_meanwhile_waits_its_turn(mesh: Mesh, postgres: Any) -> None:
    own = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await own.create_tenant(settings=TenantSettings(max_queued_run_count=1))
    clockwork = Clockwork(own, postgres)
    await clockwork.put_daily(overlap=ALLOW)
    waiting = await own.spawn()
    await clockwork.pass_time(2 * DAY)
    await clockwork.fire()
    assert await clockwork.history() == []
    await clockwork.kill(waiting.session_id)
    await clockwork.make_due()
    await clockwork.fire()
    [first] = await clockwork.history()
    await clockwork.kill(first.session_id)
    await clockwork.make_due()
    await clockwork.fire()
    second, again = await clockwork.history()
    assert (again, second.outcome) == (first, SPAWNED)
    assert times_of([second]) > times_of([first])


@pytest.mark.parametrize("service", ["transcript", "attachment-blob"])
async def test_a_spawn_is_tried_again_while_another_service_is_away(
    clockwork: Clockwork, open_mesh: OpenMesh, service: str
) -> None:
    await clockwork.put_daily()
    await clockwork.pass_time(DAY)
    references = [{"set_id": "att_" + "0" * 26, "name": "a.txt"}]
    if service == "attachment-blob":
        await clockwork.update("spawn.references", spawn={"task": "a", "references": references})
    async with open_mesh(elsewhere={service: "127.0.0.1:1"}) as broken:
        for _ in range(2):
            await clockwork.make_due()
            await clockwork.fire(broken.settings)
        assert await clockwork.history() == []
    await clockwork.make_due()
    await clockwork.fire()
    [fired] = await clockwork.history()
    assert fired.outcome == (SPAWNED if service == "transcript" else FAILED)
    going_on = [one for one in await clockwork.sessions() if one.state == session_pb2.SESSION_STATE_ACTIVE]
    assert [one.session_id for one in going_on] == [fired.session_id] * (service == "transcript")


async def test_a_kill_that_fails_for_ten_minutes_is_failed(clockwork: Clockwork, open_mesh: OpenMesh) -> None:
    """A runner holds the run of the earlier session, and the transcript service must refuse it."""
    await clockwork.put_daily(overlap=REPLACE)
    manual = await clockwork.run()
    await clockwork.mesh.claim(manual.session_id)
    await clockwork.pass_time(DAY)
    async with open_mesh(elsewhere={"transcript": "127.0.0.1:1"}) as broken:
        await clockwork.fire(broken.settings)
        assert await clockwork.history() == [manual]
        await clockwork.age_firings(timedelta(minutes=10))
        await clockwork.make_due()
        await clockwork.fire(broken.settings)
    [failed] = await clockwork.history(outcome=FAILED)
    assert (bool(failed.error_reason), failed.session_id) == (True, "")


async def test_files_of_another_tenant_are_refused(clockwork: Clockwork) -> None:
    other = Mesh(clockwork.mesh.peer, clockwork.mesh.keys, clockwork.mesh.settings)
    await other.create_tenant()
    theirs = await other.spawn(attachments=[attachment()], mode=session_pb2.SESSION_MODE_SESSION)
    references = [{"set_id": theirs.receipt.set_id, "name": "a.txt"}]
    await clockwork.put_daily(spawn=pb.ScheduledSpawn(task="a", references=references))
    await clockwork.pass_time(DAY)
    await clockwork.fire()
    [failed] = await clockwork.history()
    assert (failed.outcome, failed.session_id) == (FAILED, "")
    own = await clockwork.mesh.spawn(attachments=[attachment()], mode=session_pb2.SESSION_MODE_SESSION)
    references = [{"set_id": own.receipt.set_id, "name": "a.txt"}]
    await clockwork.update("spawn.references", spawn={"task": "a", "references": references})
    assert (await clockwork.run()).outcome == SPAWNED
