"""Schedules of the mesh in memory, as the tests of a program use them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.session.v1 import schedule_pb2
from spawnmesh.session.v1.schedule_pb2 import ScheduledSpawn
from spawnmesh.session.v1.schedule_service_pb2 import UpdateScheduleRequest
from spawnmesh_client import (
    Budget,
    CatchUpPolicy,
    Conflict,
    FailedPrecondition,
    FiringOutcome,
    InvalidRequest,
    NotFound,
    OverlapPolicy,
    Reason,
    ResourceExhausted,
    Schedule,
    ScheduleFiring,
    SessionMode,
    sync,
)
from spawnmesh_client.testing import FakeMesh
from spawnmesh_core.errors import MeshError

CRON = "0 9 * * 1-5"
TASK = "Sum up."


async def firings_of(mesh: FakeMesh, **conditions: Any) -> list[ScheduleFiring]:
    return [one async for one in mesh.schedules.firings("a", **conditions)]


async def test_schedule_is_put_read_changed_and_deleted() -> None:
    mesh = FakeMesh()
    schedule = await mesh.schedules.put("a", cron=f" {CRON}", task=TASK, label="daily")
    assert (schedule.cron, schedule.time_zone, schedule.spawn.task) == (CRON, "UTC", TASK)
    assert (schedule.overlap, schedule.catch_up) == (OverlapPolicy.SKIP, CatchUpPolicy.NONE)
    assert (schedule.upcoming_times, schedule.last_firing, schedule.paused) == ((), None, False)
    assert await mesh.schedules.put("a", cron=CRON, task=TASK, label="daily", time_zone="UTC") == schedule
    changed = await mesh.schedules.update("a", task="Other.", catch_up="ALL", etag=schedule.etag)
    assert (changed.spawn.task, changed.spawn.label, changed.catch_up) == ("Other.", "daily", "ALL")
    with pytest.raises(Conflict) as differs:
        await mesh.schedules.update("a", cron="* * * * *", etag=schedule.etag)
    assert (differs.value.reason, differs.value.facts["etag"]) == (Reason.ETAG_DIFFERS, changed.etag)
    assert (await mesh.schedules.update("a", cron=CRON, etag=schedule.etag)) == changed
    replaced = await mesh.schedules.put("a", cron=CRON, task=TASK)
    assert (replaced.spawn.label, replaced.catch_up) == ("", "NONE")
    await mesh.schedules.put("b", cron=CRON, task=TASK)
    assert [one.name for one in await mesh.schedules.list()] == ["a", "b"]
    with pytest.raises(Conflict):
        await mesh.schedules.delete("a", etag=schedule.etag)
    await mesh.schedules.delete("a", etag=replaced.etag)
    await mesh.schedules.delete("a")
    for call in (
        mesh.schedules.get("a"),
        mesh.schedules.update("a", cron=CRON),
        mesh.schedules.update("a", task=TASK),
        mesh.schedules.put("a", cron=CRON, task=TASK, etag="e1"),
        mesh.schedules.run("a"),
        firings_of(mesh),
    ):
        with pytest.raises(NotFound):
            await call


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"cron": "0 9 * *"}, "schedule.cron"),
        ({"cron": "@daily"}, "schedule.cron"),
        ({"cron": "0 9 * * ?!"}, "schedule.cron"),
        ({"time_zone": "Mars/Olympus"}, "schedule.time_zone"),
        ({"time_zone": "../etc/passwd"}, "schedule.time_zone"),
        ({"task": " "}, "schedule.spawn.task"),
    ],
)
async def test_malformed_schedule_is_refused(wrong: dict[str, str], field: str) -> None:
    given: dict[str, Any] = {"cron": CRON, "task": TASK} | wrong
    mesh = FakeMesh()
    with pytest.raises(InvalidRequest) as refused:
        await mesh.schedules.put("a", **given)
    assert [one.field for one in refused.value.violations] == [field]
    assert await mesh.schedules.list() == []


async def update(
    mesh: FakeMesh, *paths: str, allow_missing: bool = False, **values: Any
) -> schedule_pb2.Schedule:
    """Call UpdateSchedule with a mask, as a program without the client does."""
    request = UpdateScheduleRequest(
        schedule=schedule_pb2.Schedule(name="a", **values),
        update_mask=FieldMask(paths=paths),
        allow_missing=allow_missing,
    )
    return (await mesh._fake.schedules.UpdateSchedule(request)).schedule


async def test_a_mask_names_fields_of_the_spawn() -> None:
    mesh = FakeMesh()
    before = await mesh.schedules.put("a", cron=CRON, task=TASK, label="daily", budget=Budget(calls=9))
    other = ScheduledSpawn(task="Other.", model="m")
    changed = await update(mesh, "spawn.task", cron="* * * * *", spawn=other)
    assert changed.cron == CRON
    assert changed.spawn == ScheduledSpawn(task="Other.", label="daily", budget=changed.spawn.budget)
    assert changed.spawn.budget.max_model_call_count == 9
    assert changed.etag != before.etag
    cleared = await update(mesh, "spawn.label", "spawn.budget")
    assert cleared.spawn == ScheduledSpawn(task="Other.")
    assert (await update(mesh, "spawn", spawn=other)).spawn == other
    assert (await update(mesh, "*", cron=CRON, spawn=ScheduledSpawn(task=TASK))).spawn.model == ""


async def test_an_empty_mask_changes_what_is_set_also_in_the_spawn() -> None:
    mesh = FakeMesh()
    created = await update(
        mesh, cron=CRON, time_zone="Europe/Berlin", spawn=ScheduledSpawn(task=TASK), allow_missing=True
    )
    assert await update(mesh) == created
    changed = await update(mesh, spawn=ScheduledSpawn(label="daily"))
    assert (changed.cron, changed.time_zone) == (CRON, "Europe/Berlin")
    assert changed.spawn == ScheduledSpawn(task=TASK, label="daily")


@pytest.mark.parametrize("path", ["name", "paused", "spawn.nothing", "spawn.run_timeout.seconds", "cron.x"])
async def test_a_mask_of_another_path_is_refused(path: str) -> None:
    mesh = FakeMesh()
    before = await mesh.schedules.put("a", cron=CRON, task=TASK)
    with pytest.raises(MeshError) as refused:
        await update(mesh, "cron", path, cron="* * * * *")
    assert refused.value.reason is Reason.INVALID_REQUEST
    assert [one.field for one in refused.value.violations] == ["update_mask.paths[1]"]
    assert await mesh.schedules.get("a") == before


@pytest.mark.parametrize("path", ["spawn.task", "spawn"])
async def test_a_mask_does_not_remove_the_task(path: str) -> None:
    mesh = FakeMesh()
    before = await mesh.schedules.put("a", cron=CRON, task=TASK)
    with pytest.raises(MeshError, match="is required"):
        await update(mesh, path)
    assert await mesh.schedules.get("a") == before


async def test_unknown_agent_is_refused() -> None:
    with pytest.raises(FailedPrecondition) as refused:
        await FakeMesh().schedules.put("a", cron=CRON, task=TASK, agent="clerk")
    assert refused.value.reason is Reason.UNKNOWN_AGENT


async def test_run_spawns_the_session_also_of_a_paused_schedule() -> None:
    mesh = FakeMesh()
    mesh.answers("42")
    await mesh.schedules.put(
        "a", cron=CRON, task=TASK, label="daily", mode="SESSION", metadata={"n": "1"},
        budget=Budget(cost=0.5),
    )  # fmt: skip
    paused = await mesh.schedules.pause("a")
    firing = await mesh.schedules.run("a")
    session = await mesh.session(firing.session_id)
    assert paused.paused
    assert (firing.outcome, firing.is_manual) == (FiringOutcome.SPAWNED, True)
    assert (await session.result()).text == "42"
    assert (session.label, session.mode) == ("daily", SessionMode.SESSION)
    assert session.metadata == {"n": "1", "schedule": "a"}
    [budget] = (await session.usage()).budgets
    assert budget.budget.cost == 0.5
    assert [one.task for one in mesh.spawned] == [TASK]
    shown = await mesh.schedules.get("a")
    assert (shown.last_firing, shown.etag) == (firing, paused.etag)
    resumed = await mesh.schedules.resume("a")
    assert (resumed.paused, await mesh.schedules.resume("a")) == (False, resumed)
    assert len({resumed.etag, paused.etag}) == 2


async def test_request_id_of_a_run_returns_the_same_firing() -> None:
    mesh = FakeMesh()
    for name in ("a", "b"):
        await mesh.schedules.put(name, cron=CRON, task=TASK)
    first = await mesh.schedules.run("a", request_id="r1")
    await mesh.schedules.update("a", task="Other.")
    assert await mesh.schedules.run("a", request_id="r1") == first
    other = await mesh.schedules.run("b", request_id="r1")
    assert len({first.session_id, other.session_id}) == len(mesh.spawned) == 2


async def test_firings_are_those_that_fulfil_the_conditions_newest_first() -> None:
    mesh = FakeMesh()
    await mesh.schedules.put("a", cron=CRON, task=TASK)
    mesh.refuses(Reason.RUN_QUEUE_FULL)
    with pytest.raises(ResourceExhausted):
        await mesh.schedules.run("a")
    first, second = await mesh.schedules.run("a"), await mesh.schedules.run("a")
    assert await firings_of(mesh) == await firings_of(mesh, outcome="SPAWNED") == [second, first]
    assert await firings_of(mesh, outcome="FAILED") == []
    later = datetime.now(UTC) + timedelta(hours=1)
    assert await firings_of(mesh, since=later) == []
    assert len(await firings_of(mesh, since=timedelta(hours=1), before=later)) == 2
    assert await firings_of(mesh, before=later - timedelta(days=1)) == []


def test_blocking_methods_do_the_same() -> None:
    with sync.blocking(FakeMesh()) as mesh:
        assert isinstance(mesh.schedules.put("a", cron=CRON, task=TASK), Schedule)
        firing = mesh.schedules.run("a")
        assert mesh.session(firing.session_id).result().text == "done"
        assert list(mesh.schedules.firings("a")) == [firing]
        mesh.schedules.delete("a")
