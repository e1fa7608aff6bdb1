"""UpdateSchedule creates schedules and changes them, and refuses those that could never fire."""

import asyncio
from datetime import UTC, timedelta
from itertools import pairwise
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.attachment_blob.v1.attachment_pb2 import ReferencedFile
from spawnmesh.session.v1 import budget_pb2, session_pb2
from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, Tenant, TenantSettings
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.session.harness import Mesh
from tests.support.session.schedules import (
    ALL,
    ALLOW,
    DAY,
    EVERY_MINUTE,
    NONE,
    SKIP,
    SPAWNED,
    Clockwork,
    assert_refused,
    update_of,
)

TASK = pb.ScheduledSpawn(task="Sum up.")
SECRET = "sk-proj-" + "Ab3dEf6hIj9lMn2pQr5tUv8x"


async def test_UpdateSchedule__creates_with_defaults(clockwork: Clockwork) -> None:
    created = await clockwork.update(allow_missing=True, cron="0  9 *\t* 1-5", spawn=TASK)
    assert (created.name, created.cron, created.spawn) == ("nightly", "0 9 * * 1-5", TASK)
    assert (created.overlap, created.catch_up, created.paused) == (SKIP, NONE, False)
    assert not created.HasField("last_firing")
    assert created.HasField("create_time")
    assert created.updated_by == "test"
    upcoming = [one.ToDatetime(tzinfo=UTC) for one in created.upcoming_times]
    assert [(one.hour, one.minute, one.weekday() < 5) for one in upcoming] == [(9, 0, True)] * 5
    assert await clockwork.get() == created


async def test_UpdateSchedule__creates_with_all_fields_whatever_the_mask(clockwork: Clockwork) -> None:
    await clockwork.mesh.put_agent(AgentProfile(agent_id="analyst"))
    spawn = pb.ScheduledSpawn(
        task="Sum up.",
        label="sums",
        agent_id="analyst",
        model="nowhere/one",
        mode=session_pb2.SESSION_MODE_SESSION,
        cleanup=session_pb2.CLEANUP_KEEP,
        run_timeout=Duration(seconds=60),
        metadata={"team": "red"},
        budget=budget_pb2.Budget(max_model_call_count=3),
    )
    created = await clockwork.update(
        "cron", allow_missing=True, cron="0 9 * * *", time_zone="Europe/Berlin", spawn=spawn, overlap=ALLOW,
        catch_up=ALL,
    )  # fmt: skip
    assert (created.spawn, created.overlap, created.catch_up) == (spawn, ALLOW, ALL)
    assert created.time_zone == "Europe/Berlin"


@pytest.mark.parametrize("etag", ["", "0000"])
async def test_UpdateSchedule__does_not_exist(clockwork: Clockwork, etag: str) -> None:
    error = await clockwork.update_refusal(allow_missing=bool(etag), cron=EVERY_MINUTE, spawn=TASK, etag=etag)
    assert_refused(error, Reason.NOT_FOUND)
    assert await clockwork.stored("schedules") == []


async def test_UpdateSchedule__changes_what_the_mask_names(clockwork: Clockwork) -> None:
    before = await clockwork.put("0 9 * * *", spawn=pb.ScheduledSpawn(task="a", label="sums"))
    after = await clockwork.update(
        "spawn.task", "overlap", overlap=ALLOW, spawn=pb.ScheduledSpawn(task="b", label="ignored"), cron="x"
    )
    assert (after.spawn.task, after.spawn.label) == ("b", "sums")
    assert (after.overlap, after.cron) == (ALLOW, before.cron)
    assert after.etag != before.etag
    assert after.create_time == before.create_time


async def test_UpdateSchedule__the_spawn_is_replaced_as_a_whole(clockwork: Clockwork) -> None:
    await clockwork.put(
        "0 9 * * *", spawn=pb.ScheduledSpawn(task="a", label="sums", metadata={"team": "red"})
    )
    after = await clockwork.update("spawn", spawn=pb.ScheduledSpawn(task="b"))
    assert after.spawn == pb.ScheduledSpawn(task="b")


async def test_UpdateSchedule__an_empty_mask_changes_what_is_set(clockwork: Clockwork) -> None:
    before = await clockwork.put("0 9 * * *", time_zone="Europe/Berlin", catch_up=ALL)
    after = await clockwork.update(overlap=ALLOW, paused=True)
    assert (after.overlap, after.catch_up, after.time_zone) == (ALLOW, ALL, "Europe/Berlin")
    assert (after.paused, after.spawn) == (False, before.spawn)


async def test_UpdateSchedule__every_field_without_a_value_gets_its_default(clockwork: Clockwork) -> None:
    await clockwork.put("0 9 * * *", time_zone="Europe/Berlin", catch_up=ALL, overlap=ALLOW)
    after = await clockwork.update("*", cron="0 9 * * *", spawn=TASK)
    assert (after.overlap, after.catch_up, after.time_zone) == (SKIP, NONE, "UTC")


@pytest.mark.parametrize(
    "path",
    ["name", "paused", "upcoming_times", "last_firing", "last_firing.outcome", "create_time", "updated_by"],
)
async def test_UpdateSchedule__a_fixed_field_in_the_mask(clockwork: Clockwork, path: str) -> None:
    await clockwork.put("0 9 * * *")
    error = await clockwork.update_refusal("cron", path, cron="0 8 * * *")
    assert_refused(error, Reason.INVALID_REQUEST, "update_mask.paths[1]")


@pytest.mark.parametrize("path", ["etag", "nothing", "spawn.nothing", "spawn.metadata.team", "", "spawn."])
async def test_UpdateSchedule__another_path_in_the_mask(clockwork: Clockwork, path: str) -> None:
    await clockwork.put("0 9 * * *")
    error = await clockwork.update_refusal(path, cron="0 8 * * *", spawn=TASK)
    assert_refused(error, Reason.INVALID_REQUEST, "update_mask.paths[0]")


@pytest.mark.parametrize("path", ["spawn", "spawn.task", "cron"])
async def test_UpdateSchedule__a_required_field_is_not_removed(clockwork: Clockwork, path: str) -> None:
    before = await clockwork.put("0 9 * * *")
    assert_refused(await clockwork.update_refusal(path), Reason.INVALID_REQUEST, f"schedule.{path}")
    assert await clockwork.get() == before


async def test_UpdateSchedule__etag_differs(clockwork: Clockwork) -> None:
    first = await clockwork.put("0 9 * * *")
    second = await clockwork.update("overlap", overlap=ALLOW, etag=first.etag)
    error = await clockwork.update_refusal("catch_up", catch_up=ALL, etag=first.etag)
    assert_refused(error, Reason.ETAG_DIFFERS)
    assert error.facts["etag"] == second.etag
    assert await clockwork.get() == second
    await clockwork.pause()
    error = await clockwork.update_refusal("catch_up", catch_up=ALL, etag=second.etag)
    assert_refused(error, Reason.ETAG_DIFFERS)


async def test_UpdateSchedule__the_same_content_changes_nothing(clockwork: Clockwork) -> None:
    first = await clockwork.put(
        "0 9 * * mon", spawn=pb.ScheduledSpawn(task="a", metadata={"b": "1", "a": "2"})
    )
    jobs = await clockwork.jobs()
    again = await clockwork.put(
        " 0 9  * * mon ", spawn=pb.ScheduledSpawn(task="a", metadata={"a": "2", "b": "1"}), etag="old"
    )
    assert again == first
    assert await clockwork.jobs() == jobs


async def test_UpdateSchedule__content_of_an_earlier_version_is_a_change(clockwork: Clockwork) -> None:
    first = await clockwork.put("0 9 * * *")
    await clockwork.update("overlap", overlap=ALLOW)
    assert (await clockwork.update("overlap", overlap=SKIP)).etag != first.etag


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"cron": ""}, "schedule.cron"),
    ({"cron": "0 9 * *"}, "schedule.cron"),
    ({"cron": "0 0 9 * * *"}, "schedule.cron"),
    ({"cron": "@daily"}, "schedule.cron"),
    ({"cron": "61 * * * *"}, "schedule.cron"),
    ({"cron": "²-5 * * * *"}, "schedule.cron"),
    ({"cron": "٣ 9 * * *"}, "schedule.cron"),
    ({"cron": "0 9 * * *\0"}, "schedule.cron"),
    ({"cron": "0 0 30 2 *"}, "schedule.cron"),
    ({"cron": "0 0 */31 * MON#2"}, "schedule.cron"),
    ({"cron": "0," * 100 + "0 9 * * *"}, "schedule.cron"),
    ({"time_zone": "../etc/passwd"}, "schedule.time_zone"),
    ({"time_zone": "/etc/passwd"}, "schedule.time_zone"),
    ({"time_zone": "europe/berlin"}, "schedule.time_zone"),
    ({"time_zone": "Europe"}, "schedule.time_zone"),
    ({"time_zone": "Mars/Olympus"}, "schedule.time_zone"),
    ({"time_zone": "UTC\0"}, "schedule.time_zone"),
    ({"time_zone": " "}, "schedule.time_zone"),
    ({"time_zone": "é" * 33}, "schedule.time_zone"),
    ({"name": ""}, "schedule.name"),
    ({"name": "Nightly"}, "schedule.name"),
    ({"name": "a\0b"}, "schedule.name"),
    ({"name": "nightly\n"}, "schedule.name"),
    ({"name": "a" * 64}, "schedule.name"),
    ({"spawn": None}, "schedule.spawn"),
    ({"spawn": pb.ScheduledSpawn()}, "task"),
    ({"spawn": pb.ScheduledSpawn(task=" \n")}, "task"),
    ({"spawn": pb.ScheduledSpawn(task="a\0b")}, "task"),
    ({"spawn": pb.ScheduledSpawn(task="a" * 65537)}, "task"),
    ({"spawn": pb.ScheduledSpawn(task="a", label="b\0")}, "label"),
    ({"spawn": pb.ScheduledSpawn(task="a", agent_id="b\0")}, "agent_id"),
    ({"spawn": pb.ScheduledSpawn(task="a", model="b\0")}, "model"),
    ({"spawn": pb.ScheduledSpawn(task="a", metadata={"a": "b\0"})}, "metadata"),
    ({"spawn": pb.ScheduledSpawn(task="a", metadata={"schedule": "b"})}, "metadata"),
    ({"spawn": pb.ScheduledSpawn(task="a", metadata={"A": "b"})}, "metadata"),
    ({"spawn": pb.ScheduledSpawn(task="a", metadata={f"k{n}": "" for n in range(16)})}, "metadata"),
    ({"spawn": pb.ScheduledSpawn(task="a", budget=budget_pb2.Budget())}, "budget"),
    ({"spawn": pb.ScheduledSpawn(task="a", run_timeout=Duration())}, "run_timeout"),
    ({"spawn": pb.ScheduledSpawn(task="a", run_timeout=Duration(seconds=86401))}, "run_timeout"),
    ({"spawn": pb.ScheduledSpawn(task="a", references=[ReferencedFile()] * 101)}, "references"),
    ({"overlap": 17}, "schedule.overlap"),
    ({"catch_up": 17}, "schedule.catch_up"),
]


@pytest.mark.parametrize(("fields", "problem"), REFUSED)
async def test_UpdateSchedule__a_schedule_that_could_not_be_fired(
    clockwork: Clockwork, fields: dict[str, Any], problem: str
) -> None:
    valid: dict[str, Any] = {"cron": EVERY_MINUTE, "spawn": TASK}
    error = await clockwork.update_refusal("*", **{**valid, **fields})
    assert_refused(error, Reason.INVALID_REQUEST, problem)
    assert await clockwork.stored("schedules") == []
    assert await clockwork.jobs() == []


async def test_UpdateSchedule__a_refused_change_leaves_it_as_it_was(clockwork: Clockwork) -> None:
    before, jobs = await clockwork.put("0 9 * * *"), await clockwork.jobs()
    for path, values in (("cron", {"cron": "0 0 30 2 *"}), ("time_zone", {"time_zone": "europe/berlin"})):
        assert_refused(await clockwork.update_refusal(path, **values), Reason.INVALID_REQUEST)
    assert (await clockwork.get(), await clockwork.jobs()) == (before, jobs)


async def test_UpdateSchedule__a_calendar_that_is_due_every_28_years(clockwork: Clockwork) -> None:
    created = await clockwork.put("0 0 * 2 MON#5")
    years = [one.ToDatetime().year for one in created.upcoming_times]
    assert len(years) == 5
    assert all(later > earlier for earlier, later in pairwise(years))


@pytest.mark.parametrize(
    "time_zone", ["", "UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+12"]
)
async def test_UpdateSchedule__time_zones(clockwork: Clockwork, time_zone: str) -> None:
    created = await clockwork.put("30 1 * * *", time_zone=time_zone)
    assert created.time_zone in (time_zone, "UTC")
    assert len(created.upcoming_times) == 5


async def test_UpdateSchedule__unknown_agent(clockwork: Clockwork) -> None:
    spawn = pb.ScheduledSpawn(task="a", agent_id="no-such")
    error = await clockwork.update_refusal("*", cron=EVERY_MINUTE, spawn=spawn)
    assert_refused(error, Reason.UNKNOWN_AGENT, "no-such")
    await clockwork.put(EVERY_MINUTE)
    error = await clockwork.update_refusal("spawn.agent_id", spawn=spawn)
    assert_refused(error, Reason.UNKNOWN_AGENT)


async def test_UpdateSchedule__unknown_tenant(clockwork: Clockwork) -> None:
    request = update_of("*", allow_missing=True, cron=EVERY_MINUTE, spawn=TASK)
    assert_refused(await clockwork.refusal("UpdateSchedule", request, "t-no-such"), Reason.UNKNOWN_TENANT)


async def test_UpdateSchedule__a_tenant_that_is_deleted(clockwork: Clockwork) -> None:
    await clockwork.mesh.delete_tenant()
    error = await clockwork.update_refusal("*", cron=EVERY_MINUTE, spawn=TASK)
    assert_refused(error, Reason.UNKNOWN_TENANT)


async def test_UpdateSchedule__at_most_a_hundred_also_at_the_same_time(clockwork: Clockwork) -> None:
    for number in range(95):
        await clockwork.put("0 9 * * *", name=f"s-{number}")
    made = await asyncio.gather(
        *(clockwork.put("0 9 * * *", name=f"t-{number}") for number in range(10)), return_exceptions=True
    )
    refused = [one for one in made if isinstance(one, MeshError)]
    assert [one.reason for one in refused] == [Reason.SCHEDULE_COUNT_EXCEEDED] * 5
    assert refused[0].facts == {"limit": "100", "schedules": "100"}
    assert len(await clockwork.stored("schedules")) == len(await clockwork.jobs()) == 100
    assert (await clockwork.put("0 8 * * *", name="s-0")).cron == "0 8 * * *"
    await clockwork.delete("s-1")
    await clockwork.put("0 9 * * *", name="another")


async def test_UpdateSchedule__the_same_new_name_at_the_same_time(clockwork: Clockwork) -> None:
    made = await asyncio.gather(*(clockwork.put("0 9 * * *", task=f"task {n}") for n in range(6)))
    [stored] = await clockwork.stored("schedules")
    assert stored["version"] == 6
    assert len({one.etag for one in made}) == 6
    assert len(await clockwork.jobs()) == 1


async def test_UpdateSchedule__a_changed_line_counts_from_now_on(clockwork: Clockwork) -> None:
    await clockwork.put_daily()
    await clockwork.pass_time(3 * DAY)
    due = await clockwork.now() - timedelta(hours=1)
    changed = await clockwork.update("cron", cron=f"{due.minute} {due.hour} * * *")
    [job] = await clockwork.jobs()
    assert abs(job["due_time"] - times_upcoming(changed)[0]) < timedelta(hours=1)
    await clockwork.make_due()
    await clockwork.fire()
    assert await clockwork.history() == []


async def test_UpdateSchedule__a_changed_zone_counts_from_now_on(clockwork: Clockwork) -> None:
    before = await clockwork.put_daily()
    await clockwork.pass_time(3 * DAY)
    changed = await clockwork.update("time_zone", time_zone="Asia/Kathmandu")
    assert times_upcoming(changed) != times_upcoming(before)
    await clockwork.make_due()
    await clockwork.fire()
    assert await clockwork.history() == []


async def test_UpdateSchedule__a_changed_line_drops_what_waits_to_be_fired(clockwork: Clockwork) -> None:
    """The second due time is stored when the first one is fired."""
    await clockwork.put_daily(overlap=ALLOW)
    await clockwork.pass_time(2 * DAY)
    async with clockwork.attempts() as attempt:
        await attempt()
    due = await clockwork.now() - timedelta(hours=1)
    await clockwork.update("cron", cron=f"{due.minute} {due.hour} * * *")
    await clockwork.make_due()
    await clockwork.fire()
    assert await clockwork.outcomes() == [SPAWNED]
    assert len(await clockwork.sessions()) == 1


async def test_UpdateSchedule__a_changed_task_does_not_move_due_times(clockwork: Clockwork) -> None:
    await clockwork.put_daily()
    await clockwork.pass_time(DAY)
    [job] = await clockwork.jobs()
    await clockwork.update("spawn.task", "overlap", spawn=pb.ScheduledSpawn(task="Another."), overlap=ALLOW)
    assert [one["due_time"] for one in await clockwork.jobs()] == [job["due_time"]]
    await clockwork.fire()
    [fired] = await clockwork.history()
    assert fired.outcome == SPAWNED


async def test_UpdateSchedule__a_change_does_not_resume(clockwork: Clockwork) -> None:
    await clockwork.put("0 9 * * *")
    await clockwork.pause()
    changed = await clockwork.update("cron", cron="0 8 * * *")
    assert (changed.paused, list(changed.upcoming_times)) == (True, [])
    assert await clockwork.jobs() == []


async def test_UpdateSchedule__secrets_are_masked(mesh: Mesh, postgres: Any) -> None:
    own = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await own.create_tenant(settings=TenantSettings(transcripts=TranscriptSettings(mask_secrets=True)))
    masking = Clockwork(own, postgres)
    first = await masking.put("0 9 * * *", task=f"Use {SECRET}.")
    assert first.spawn.task == "Use [$redacted:provider_key]."
    assert await masking.put("0 9 * * *", task=f"Use {SECRET}.") == first
    [stored] = await masking.stored("schedules")
    assert SECRET.encode() not in bytes(stored["spawn"])


async def test_UpdateSchedule__secrets_of_before_are_masked_by_the_next_change(clockwork: Clockwork) -> None:
    kept = await clockwork.put("0 9 * * *", task=f"Use {SECRET}.")
    assert SECRET in kept.spawn.task
    settings = TenantSettings(transcripts=TranscriptSettings(mask_secrets=True))
    request = tenant_pb.UpdateTenantRequest(
        tenant=Tenant(tenant_id=clockwork.mesh.tenant, settings=settings),
        update_mask={"paths": ["settings.transcripts"]},
    )
    await clockwork.mesh.operator("UpdateTenant", request)
    assert SECRET not in (await clockwork.update("overlap", overlap=ALLOW)).spawn.task


async def test_UpdateSchedule__of_another_tenant_is_another_schedule(clockwork: Clockwork) -> None:
    other = Clockwork(
        Mesh(clockwork.mesh.peer, clockwork.mesh.keys, clockwork.mesh.settings), clockwork.postgres
    )
    await other.mesh.create_tenant()
    theirs = await other.put("0 9 * * *", task="Theirs.")
    mine = await clockwork.put("0 8 * * *", task="Mine.")
    assert (await other.get(), await clockwork.get()) == (theirs, mine)


def times_upcoming(schedule: pb.Schedule) -> list[Any]:
    return [one.ToDatetime(tzinfo=UTC) for one in schedule.upcoming_times]
