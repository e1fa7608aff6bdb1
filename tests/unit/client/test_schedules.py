"""Schedules through the client, against a session service in this process."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.content.v1 import thinking_pb2
from spawnmesh.session.v1 import budget_pb2, session_pb2
from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh_client import (
    Budget,
    CatchUpPolicy,
    Conflict,
    FiringOutcome,
    InvalidRequest,
    Mesh,
    MeshError,
    OverlapPolicy,
    Reason,
    ReferencedFile,
    SessionMode,
    connect,
)
from spawnmesh_client.schedule_views import schedule_view
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import invalid
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.command.fake_mesh import FakeMesh, unset
from tests.support.command.schedules import (
    FIRED_SESSION_ID,
    FIRING_ID,
    RecordedSchedules,
    firing_of,
    schedule_mesh,
    schedules,
    stamps,
)

__all__ = ["schedule_mesh", "schedules", "unset"]

SET_ID = "att_00000000000000000000000001"
OTHER_SET_ID = "att_00000000000000000000000002"
CRON = "0 9 * * 1-5"
DUE = datetime(2026, 1, 5, 8, tzinfo=UTC)
DIFFERS = MeshError(Reason.ETAG_DIFFERS, "changed", facts={"etag": "e2"})


@pytest.fixture
async def client(schedule_mesh: FakeMesh, keys: Path) -> AsyncIterator[Mesh]:
    token = TokenMinter("client", keys / "client.pem").client_token("acme", "test", 60)
    async with connect(targets=schedule_mesh.targets, token=token) as connected:
        yield connected


async def test_UpdateSchedule__put_replaces_all_fields(client: Mesh, schedules: RecordedSchedules) -> None:
    await client.schedules.put(
        "a",
        cron=CRON,
        time_zone="Europe/Berlin",
        task="Sum up.",
        agent="clerk",
        label="daily",
        model="m",
        mode=SessionMode.SESSION,
        cleanup="keep",
        runtime="EXTERNAL",
        run_timeout=timedelta(seconds=2.5),
        thinking="LOW",
        metadata={"team": "ops"},
        budget=Budget(cost=0.5),
        references=[ReferencedFile(SET_ID, "a.md", "b.md")],
        overlap=OverlapPolicy.REPLACE,
        catch_up="latest",
        etag="e1",
    )
    await client.schedules.put("a", cron=CRON, task="Sum up.", run_timeout=60)
    first, second = schedules.requests
    assert first.schedule == pb.Schedule(
        name="a",
        cron=CRON,
        time_zone="Europe/Berlin",
        spawn=pb.ScheduledSpawn(
            task="Sum up.",
            label="daily",
            agent_id="clerk",
            model="m",
            mode=session_pb2.SESSION_MODE_SESSION,
            cleanup=session_pb2.CLEANUP_KEEP,
            runtime=session_pb2.RUNTIME_EXTERNAL,
            run_timeout=Duration(seconds=2, nanos=500_000_000),
            thinking=thinking_pb2.THINKING_LEVEL_LOW,
            metadata={"team": "ops"},
            references=[attachment_pb2.ReferencedFile(set_id=SET_ID, name="a.md", new_name="b.md")],
            budget=budget_pb2.Budget(max_cost_micros=500_000),
        ),
        overlap=pb.OVERLAP_POLICY_REPLACE,
        catch_up=pb.CATCH_UP_POLICY_LATEST,
        etag="e1",
    )
    assert second.schedule == pb.Schedule(
        name="a", cron=CRON, spawn=pb.ScheduledSpawn(task="Sum up.", run_timeout=Duration(seconds=60))
    )
    assert {(one.allow_missing, *one.update_mask.paths) for one in schedules.requests} == {(True, "*")}


@pytest.mark.parametrize(
    ("word", "known"),
    [
        ({"overlap": "QUEUE"}, "SKIP, ALLOW, REPLACE"),
        ({"catch_up": "FIRST"}, "NONE, LATEST, ALL"),
        ({"mode": "FOREVER"}, "RUN, SESSION"),
        ({"thinking": "HARD"}, "OFF, MINIMAL"),
        ({"budget": Budget(cost=0)}, "cost is at least a millionth"),
    ],
)
async def test_unknown_word_is_refused_with_the_known_ones(
    client: Mesh, schedules: RecordedSchedules, word: Any, known: str
) -> None:
    with pytest.raises(ValueError, match=known):
        await client.schedules.put("a", cron=CRON, task="Sum up.", **word)
    with pytest.raises(ValueError, match=known):
        await client.schedules.update("a", **word)
    assert schedules.requests == []


async def test_UpdateSchedule__update_changes_what_is_given(
    client: Mesh, schedules: RecordedSchedules
) -> None:
    await client.schedules.update("a", cron="@daily", etag="e1")
    await client.schedules.update("a", time_zone="", overlap="ALLOW", catch_up="ALL")
    first, second = schedules.requests
    assert (list(first.update_mask.paths), first.schedule) == (
        ["cron"],
        pb.Schedule(name="a", cron="@daily", etag="e1"),
    )
    assert (list(second.update_mask.paths), second.schedule) == (
        ["time_zone", "overlap", "catch_up"],
        pb.Schedule(name="a", overlap=pb.OVERLAP_POLICY_ALLOW, catch_up=pb.CATCH_UP_POLICY_ALL),
    )
    assert (first.allow_missing, second.allow_missing) == (False, False)
    with pytest.raises(
        ValueError, match="name a field that changes: cron, time_zone, overlap, catch_up, task"
    ):
        await client.schedules.update("a")


async def test_UpdateSchedule__rest_of_the_spawn_is_kept(client: Mesh, schedules: RecordedSchedules) -> None:
    spawn = schedules.schedule.spawn
    spawn.label = "daily"
    spawn.budget.max_cost_micros = 7
    spawn.references.add(set_id=SET_ID, name="a.md")
    await client.schedules.update("a", cron="0 8 * * *", task="Other.", metadata={"n": "1"}, budget=None)
    await client.schedules.update("a", references=[ReferencedFile(OTHER_SET_ID, "b.md")], run_timeout=None)
    _, first, _, second = schedules.requests
    assert (list(first.update_mask.paths), first.schedule.etag) == (["cron", "spawn"], "e1")
    expected = pb.ScheduledSpawn()
    expected.CopyFrom(spawn)
    expected.task = "Other."
    expected.ClearField("budget")
    del expected.metadata["team"]
    expected.metadata["n"] = "1"
    assert first.schedule == pb.Schedule(name="a", cron="0 8 * * *", spawn=expected, etag="e1")
    assert list(second.update_mask.paths) == ["spawn"]
    assert [one.set_id for one in second.schedule.spawn.references] == [OTHER_SET_ID]
    assert not second.schedule.spawn.HasField("run_timeout")
    assert second.schedule.spawn.budget.max_cost_micros == 7


async def test_UpdateSchedule__spawn_is_read_again_if_it_has_changed(
    client: Mesh, schedules: RecordedSchedules
) -> None:
    schedules.update_refusals = [DIFFERS, DIFFERS]
    await client.schedules.update("a", label="new")
    names = [type(one).__name__.removesuffix("ScheduleRequest") for one in schedules.requests]
    assert names == ["Get", "Update"] * 3
    schedules.requests.clear()
    schedules.update_refusals = [DIFFERS]
    with pytest.raises(Conflict):
        await client.schedules.update("a", label="new", etag="e0")
    assert schedules.requests[-1].schedule.etag == "e0"
    assert len(schedules.requests) == 2
    schedules.update_refusals = [DIFFERS] * 9
    with pytest.raises(Conflict):
        await client.schedules.update("a", label="new")
    schedules.update_refusals = [invalid("schedule.spawn.label", "is too long")]
    with pytest.raises(InvalidRequest):
        await client.schedules.update("a", label="new")


async def test_schedules_are_read_paused_resumed_and_deleted(
    client: Mesh, schedules: RecordedSchedules
) -> None:
    schedules.schedule.upcoming_times.extend(stamps(DUE, DUE + timedelta(days=1)))
    schedules.schedule.last_firing.CopyFrom(
        firing_of(pb.FIRING_OUTCOME_FAILED, session_id="", error_reason="RUN_QUEUE_FULL")
    )
    schedules.schedule.spawn.references.add(set_id=SET_ID, name="a.md")
    schedules.schedule.spawn.budget.max_token_count = 9
    assert [one.name for one in await client.schedules.list()] == ["a", "b"]
    found = await client.schedules.get("a")
    assert (found.cron, found.time_zone, found.etag, found.paused) == (CRON, "Europe/Berlin", "e1", False)
    assert (found.overlap, found.catch_up) == (OverlapPolicy.SKIP, CatchUpPolicy.NONE)
    assert found.upcoming_times == (DUE, DUE + timedelta(days=1))
    assert found.spawn.metadata == {"team": "ops"}
    assert found.spawn.references == (ReferencedFile(SET_ID, "a.md"),)
    assert (found.spawn.budget, found.spawn.thinking) == (Budget(tokens=9), None)
    assert (found.spawn.mode, found.spawn.run_timeout) == (SessionMode.RUN, timedelta(hours=1))
    assert found.last_firing is not None
    assert found.last_firing.outcome is FiringOutcome.FAILED
    assert found.last_firing.error_reason == Reason.RUN_QUEUE_FULL
    assert await client.schedules.pause("a") == await client.schedules.resume("a") == found
    await client.schedules.delete("a", etag="e1")
    assert (schedules.requests[-1].name, schedules.requests[-1].etag) == ("a", "e1")


async def test_RunSchedule__repeats_have_the_given_request_id(
    client: Mesh, schedules: RecordedSchedules
) -> None:
    firing = await client.schedules.run("a", request_id="r1")
    await client.schedules.run("a")
    await client.schedules.run("a")
    assert (firing.firing_id, firing.session_id, firing.is_manual) == (FIRING_ID, FIRED_SESSION_ID, True)
    assert (firing.due_time, firing.outcome) == (datetime.fromtimestamp(1, UTC), FiringOutcome.SPAWNED)
    first, second, third = schedules.requests
    assert (first.name, first.request_id) == ("a", "r1")
    assert len({first.request_id, second.request_id, third.request_id, ""}) == 4


async def test_ListScheduleFirings__every_page_is_read(client: Mesh, schedules: RecordedSchedules) -> None:
    schedules.pages = [[], [firing_of(pb.FIRING_OUTCOME_SPAWNED)], [firing_of(pb.FIRING_OUTCOME_MISSED)]]
    found = [
        one
        async for one in client.schedules.firings(
            "a", outcome="FAILED", since=DUE, before=DUE + timedelta(days=1)
        )
    ]
    assert [one.outcome for one in found] == ["SPAWNED", "MISSED"]
    request = schedules.requests[0]
    assert (request.name, request.outcome) == ("a", pb.FIRING_OUTCOME_FAILED)
    assert request.start_time.ToDatetime(UTC) == DUE
    assert request.end_time.ToDatetime(UTC) == DUE + timedelta(days=1)
    assert len(schedules.requests) == 3


async def test_time_can_be_that_long_ago(client: Mesh, schedules: RecordedSchedules) -> None:
    before = utc_now()
    assert [one async for one in client.schedules.firings("a", since=timedelta(hours=1))] == []
    assert [one async for one in client.schedules.firings("a")] == []
    first, second = schedules.requests
    assert before <= first.start_time.ToDatetime(UTC) + timedelta(hours=1) <= utc_now()
    assert not second.HasField("start_time")
    with pytest.raises(ValueError, match="a time needs its zone"):
        await anext(client.schedules.firings("a", before=datetime(2026, 1, 2)))  # noqa: DTZ001
    with pytest.raises(ValueError, match="SPAWNED, SKIPPED, MISSED, FAILED"):
        await anext(client.schedules.firings("a", outcome="LOST"))
    assert len(schedules.requests) == 2


async def test_refusal_has_its_reason(client: Mesh, schedules: RecordedSchedules) -> None:
    schedules.refusal = invalid("schedule.cron", "is never due")
    with pytest.raises(InvalidRequest) as refused:
        await client.schedules.put("a", cron="0 0 30 2 *", task="Sum up.")
    assert refused.value.violations[0].field == "schedule.cron"


def test_word_of_a_newer_mesh_is_unknown() -> None:
    schedule = pb.Schedule()
    schedule.MergeFromString(b"\x28\x63")  # overlap = 99
    assert schedule_view(schedule).overlap is OverlapPolicy.UNKNOWN
