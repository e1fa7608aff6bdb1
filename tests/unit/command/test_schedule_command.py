"""The command `spawnmesh schedule`."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.attachment_blob.v1.attachment_pb2 import ReferencedFile
from spawnmesh.content.v1 import thinking_pb2
from spawnmesh.session.v1 import budget_pb2, session_pb2
from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh_command.cli.schedule_text import until_text
from spawnmesh_command.cli.schedules import CatchUpChoice, OutcomeChoice, OverlapChoice
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError, invalid, not_found
from spawnmesh_core.reasons import Reason

from tests.support.command.fake_mesh import FakeMesh, unset
from tests.support.command.schedules import (
    FIRED_SESSION_ID,
    RecordedSchedules,
    firing_of,
    schedule_mesh,
    schedules,
    stamps,
)

__all__ = ["schedule_mesh", "schedules", "unset"]

CRON = "0 9 * * 1-5"
SET_ID = "att_00000000000000000000000001"
PUT = ("put", "a", "--cron", CRON, "--task", "Sum up.")
BEFORE_SUMMER_TIME = datetime(2026, 3, 27, 8, tzinfo=UTC)
AFTER_SUMMER_TIME = datetime(2026, 3, 30, 7, tzinfo=UTC)


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("choices", "enum"),
    [
        (OverlapChoice, pb.OverlapPolicy.DESCRIPTOR),
        (CatchUpChoice, pb.CatchUpPolicy.DESCRIPTOR),
        (OutcomeChoice, pb.FiringOutcome.DESCRIPTOR),
    ],
)
def test_choices_are_those_of_the_contract(
    choices: type[OverlapChoice | CatchUpChoice | OutcomeChoice], enum: Any
) -> None:
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    known = [one.name.removeprefix(prefix) for one in enum.values if one.number]
    assert [(one.name, one.value) for one in choices] == [(word, word.lower()) for word in known]


async def test_put_prints_the_next_due_times_in_the_zone_and_in_utc(
    schedule_mesh: FakeMesh, schedules: RecordedSchedules
) -> None:
    schedules.schedule.upcoming_times.extend(stamps(BEFORE_SUMMER_TIME, AFTER_SUMMER_TIME))

    result = await schedule_mesh.run("schedule", *PUT, "--zone", "Europe/Berlin")
    document = await schedule_mesh.run("schedule", *PUT, "--json")

    assert (result.exit_code, result.stderr) == (0, "")
    lines = lines_of(result.stdout)
    assert lines[:6] == [
        "schedule a",
        f"cron {CRON}",
        "zone Europe/Berlin",
        "state active",
        "task Sum up.",
        "agent default",
    ]
    assert lines[-4:] == [
        "",
        "due in Europe/Berlin UTC",
        "Fri 2026-03-27 09:00 CET Fri 2026-03-27 08:00 UTC",
        "Mon 2026-03-30 09:00 CEST Mon 2026-03-30 07:00 UTC",
    ]
    assert json.loads(document.stdout)["upcoming_times"] == ["2026-03-27T08:00:00Z", "2026-03-30T07:00:00Z"]


@pytest.mark.parametrize("zone", ["UTC", "Mars/Olympus"])
async def test_due_times_are_in_utc_alone_if_the_zone_is_utc_or_unknown_here(
    schedule_mesh: FakeMesh, schedules: RecordedSchedules, zone: str
) -> None:
    schedules.schedule.time_zone = zone
    schedules.schedule.upcoming_times.extend(stamps(BEFORE_SUMMER_TIME))

    result = await schedule_mesh.run("schedule", "get", "a")

    assert lines_of(result.stdout)[-2:] == ["due", "Fri 2026-03-27 08:00 UTC"]


async def test_put_sends_all_options(schedule_mesh: FakeMesh, schedules: RecordedSchedules) -> None:
    await schedule_mesh.run("schedule", *PUT)
    result = await schedule_mesh.run(
        *("schedule", *PUT, "--zone", "Europe/Berlin", "--agent", "clerk", "--label", "daily"),
        *("--model", "m", "--thinking", "low", "--timeout", "30m", "--meta", "team=ops"),
        *("--metadata", "n=1", "--budget", "cost=0.50,wait=2h", "--attach-from", f"{SET_ID}/a.md:b.md"),
        *("--open", "--keep", "--external", "--overlap", "replace", "--catch-up", "latest", "--etag", "e1"),
    )

    assert (result.exit_code, result.stderr) == (0, "")
    first, second = schedules.requests
    assert first.schedule == pb.Schedule(
        name="a",
        cron=CRON,
        time_zone="UTC",
        spawn=pb.ScheduledSpawn(
            task="Sum up.",
            agent_id="default",
            mode=session_pb2.SESSION_MODE_RUN,
            runtime=session_pb2.RUNTIME_SUBAGENT,
            run_timeout=Duration(seconds=3600),
        ),
        overlap=pb.OVERLAP_POLICY_SKIP,
        catch_up=pb.CATCH_UP_POLICY_NONE,
    )
    assert second.schedule == pb.Schedule(
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
            run_timeout=Duration(seconds=1800),
            thinking=thinking_pb2.THINKING_LEVEL_LOW,
            metadata={"team": "ops", "n": "1"},
            references=[ReferencedFile(set_id=SET_ID, name="a.md", new_name="b.md")],
            budget=budget_pb2.Budget(max_cost_micros=500_000, max_wait=Duration(seconds=7200)),
        ),
        overlap=pb.OVERLAP_POLICY_REPLACE,
        catch_up=pb.CATCH_UP_POLICY_LATEST,
        etag="e1",
    )
    assert {(one.allow_missing, *one.update_mask.paths) for one in schedules.requests} == {(True, "*")}


@pytest.mark.parametrize(
    ("option", "spawn"),
    [
        ("--open", pb.ScheduledSpawn(mode=session_pb2.SESSION_MODE_SESSION)),
        ("--keep", pb.ScheduledSpawn(cleanup=session_pb2.CLEANUP_KEEP)),
        ("--external", pb.ScheduledSpawn(runtime=session_pb2.RUNTIME_EXTERNAL)),
    ],
)
async def test_each_switch_changes_one_field(
    schedule_mesh: FakeMesh, schedules: RecordedSchedules, option: str, spawn: pb.ScheduledSpawn
) -> None:
    await schedule_mesh.run("schedule", *PUT)
    await schedule_mesh.run("schedule", *PUT, option)

    first, second = (one.schedule.spawn for one in schedules.requests)
    first.MergeFrom(spawn)
    assert second == first


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("put", "a", "--task", "Sum up."), "--cron"),
        (("put", "a", "--cron", CRON), "--task"),
        ((*PUT, "--timeout", "2d"), "is a time from 1s to 1d, such as"),
        ((*PUT, "--timeout", "0s"), "is a time from 1s to 1d"),
        ((*PUT, "--meta", "team"), "'team' is not KEY=VALUE"),
        ((*PUT, "--budget", "cost=0"), "cost is a number above 0"),
        ((*PUT, "--overlap", "queue"), "'skip', 'allow', 'replace'"),
        ((*PUT, "--catch-up", "first"), "'none', 'latest', 'all'"),
        ((*PUT, "--thinking", "hard"), "there is no such level"),
        ((*PUT, "--attach-from", "a.md"), "is not SET_ID"),
        (("history", "a", "--outcome", "lost"), "'spawned', 'skipped', 'missed', 'failed'"),
        (("history", "a", "--limit", "0"), "--limit"),
    ],
)
async def test_wrong_option_is_refused_before_any_call(
    schedule_mesh: FakeMesh, schedules: RecordedSchedules, arguments: tuple[str, ...], said: str
) -> None:
    result = await schedule_mesh.run("schedule", *arguments)

    assert (result.exit_code, said in " ".join(result.stderr.replace("│", "").split())) == (2, True)
    assert schedules.requests == []


async def test_list_has_a_row_for_each_schedule(
    schedule_mesh: FakeMesh, schedules: RecordedSchedules
) -> None:
    due = utc_now() + timedelta(days=10, hours=12)
    schedules.schedule.upcoming_times.extend(stamps(due, due + timedelta(days=1)))
    schedules.schedule.last_firing.CopyFrom(
        firing_of(pb.FIRING_OUTCOME_FAILED, session_id="", error_reason="RUN_QUEUE_FULL")
    )

    result = await schedule_mesh.run("schedule", "list")
    schedules.schedule.paused = True
    paused = await schedule_mesh.run("schedule", "list")
    document = await schedule_mesh.run("schedule", "list", "--json")

    header, first, second = lines_of(result.stdout)
    assert header == "schedule cron zone next last state"
    assert first.startswith(f"a {CRON} Europe/Berlin in 10d")
    assert first.endswith("failed: RUN_QUEUE_FULL active")
    assert second == f"b {CRON} Europe/Berlin active"
    assert lines_of(paused.stdout)[1].endswith("failed: RUN_QUEUE_FULL paused")
    assert [one["name"] for one in json.loads(document.stdout)["schedules"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (timedelta(days=3, hours=4, minutes=5), "in 3d4h"),
        (timedelta(days=3, minutes=5), "in 3d"),
        (timedelta(hours=3, minutes=12, seconds=59), "in 3h12m"),
        (timedelta(minutes=59, seconds=59.9), "in 59m59s"),
        (timedelta(seconds=0.5), "in 0s"),
        (timedelta(0), "now"),
        (timedelta(seconds=-9), "now"),
    ],
)
def test_time_until_the_next_one_has_two_units(left: timedelta, text: str) -> None:
    [due] = stamps(BEFORE_SUMMER_TIME + left)
    assert until_text(due, BEFORE_SUMMER_TIME) == text


@pytest.mark.parametrize("command", ["get", "pause", "resume"])
async def test_schedule_is_shown_as_it_is_now(
    schedule_mesh: FakeMesh, schedules: RecordedSchedules, command: str
) -> None:
    schedule = schedules.schedule
    schedule.paused = True
    schedule.last_firing.CopyFrom(firing_of(pb.FIRING_OUTCOME_SPAWNED))
    schedule.spawn.mode = session_pb2.SESSION_MODE_SESSION
    schedule.spawn.cleanup = session_pb2.CLEANUP_KEEP
    schedule.spawn.thinking = thinking_pb2.THINKING_LEVEL_LOW
    schedule.spawn.references.add(set_id=SET_ID, name="a.md", new_name="b.md")
    schedule.spawn.budget.CopyFrom(
        budget_pb2.Budget(
            max_cost_micros=500_000,
            max_token_count=9000,
            max_model_call_count=40,
            max_run_time=Duration(seconds=600),
            max_wait=Duration(),
        )
    )
    schedule.spawn.agent_id = ""

    result = await schedule_mesh.run("schedule", command, "a")
    document = await schedule_mesh.run("schedule", command, "a", "--json")

    lines = lines_of(result.stdout)
    assert lines[3:14] == [
        "state paused",
        "task Sum up.",
        "agent default",
        "spawned open, keep",
        "thinking low",
        "metadata.team ops",
        f"file {SET_ID}/a.md:b.md",
        "timeout 1h",
        "budget cost=0.50,tokens=9000,calls=40,time=10m,wait=0s",
        "overlap skip",
        "catch up none",
    ]
    assert lines[14].startswith("last 19")
    assert lines[14].endswith(f"spawned {FIRED_SESSION_ID}")
    assert lines[-2:] == ["written by operator", "etag e1"]
    assert json.loads(document.stdout)["overlap"] == "OVERLAP_POLICY_SKIP"
    names = {(type(one).__name__, one.name) for one in schedules.requests}
    assert names == {(f"{command.title()}ScheduleRequest", "a")}


async def test_word_of_a_newer_mesh_is_its_number(
    schedule_mesh: FakeMesh, schedules: RecordedSchedules
) -> None:
    schedules.schedule.MergeFromString(b"\x28\x63")  # overlap = 99

    result = await schedule_mesh.run("schedule", "get", "a")

    assert "overlap 99" in lines_of(result.stdout)


async def test_delete_says_nothing_but_in_json(schedule_mesh: FakeMesh, schedules: RecordedSchedules) -> None:
    result = await schedule_mesh.run("schedule", "delete", "a", "--etag", "e1")
    document = await schedule_mesh.run("schedule", "delete", "a", "--json")

    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads(document.stdout) == {"deleted": "a"}
    assert [one.etag for one in schedules.requests] == ["e1", ""]


async def test_run_prints_the_session_and_how_to_watch_it(
    schedule_mesh: FakeMesh, schedules: RecordedSchedules
) -> None:
    result = await schedule_mesh.run("schedule", "run", "a", "--request-id", "r1")
    mesh_file = schedule_mesh.data / "mesh.json"
    content = json.loads(mesh_file.read_text())
    mesh_file.write_text(json.dumps(content | {"console": "http://127.0.0.1:9"}))
    with_console = await schedule_mesh.run("schedule", "run", "a")
    document = await schedule_mesh.run("schedule", "run", "a", "--json")

    expected = [f"session {FIRED_SESSION_ID}", f"watch spawnmesh watch {FIRED_SESSION_ID}"]
    assert (result.exit_code, lines_of(result.stdout)) == (0, expected)
    shown = f"console http://127.0.0.1:9/sessions/{FIRED_SESSION_ID}"
    assert lines_of(with_console.stdout) == [*expected, shown]
    assert json.loads(document.stdout)["session_id"] == FIRED_SESSION_ID
    first, second, third = schedules.requests
    assert (first.name, first.request_id) == ("a", "r1")
    assert len({first.request_id, second.request_id, third.request_id, ""}) == 4


async def test_history_has_a_row_for_each_firing(
    schedule_mesh: FakeMesh, schedules: RecordedSchedules
) -> None:
    failed = firing_of(
        pb.FIRING_OUTCOME_FAILED, session_id="", error_reason="RUN_QUEUE_FULL", error_message="full"
    )
    schedules.pages = [
        [],
        [firing_of(pb.FIRING_OUTCOME_SPAWNED, is_manual=True)],
        [failed, firing_of(pb.FIRING_OUTCOME_MISSED, session_id="")],
        [firing_of(pb.FIRING_OUTCOME_SKIPPED)],
    ]

    result = await schedule_mesh.run("schedule", "history", "a", "--limit", "3")
    document = await schedule_mesh.run("schedule", "history", "a", "--outcome", "failed", "--json")

    header, first, second, third = lines_of(result.stdout)
    assert header == "due fired by outcome session why"
    assert first.startswith("19")
    assert first.endswith(f"run spawned {FIRED_SESSION_ID}")
    assert second.endswith("cron failed: RUN_QUEUE_FULL full")
    assert third.endswith("cron missed")
    assert len(json.loads(document.stdout)["firings"]) == 4
    plain, *_, filtered = schedules.requests
    assert (plain.name, plain.page_size, plain.outcome) == ("a", 3, 0)
    assert (filtered.page_size, filtered.outcome) == (50, pb.FIRING_OUTCOME_FAILED)


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (
            invalid("schedule.cron", "is never due"),
            "schedule.cron: is never due. for example, '0 9 * * 1-5' is due at 9:00 on weekdays",
        ),
        (
            invalid("schedule.time_zone", "is no time zone of the IANA database"),
            ". for example, Europe/Berlin is one",
        ),
        (not_found("schedule", "a"), ". `spawnmesh schedule list` lists what there is"),
        (
            MeshError(Reason.SCHEDULE_COUNT_EXCEEDED, "100"),
            ". `spawnmesh schedule list` lists them",
        ),
        (MeshError(Reason.UNKNOWN_AGENT, "no"), "the agent `default` is always there"),
    ],
)
async def test_refusal_says_what_to_do(
    schedule_mesh: FakeMesh, schedules: RecordedSchedules, refusal: MeshError, said: str
) -> None:
    schedules.refusal = refusal

    result = await schedule_mesh.run("schedule", *PUT)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith(f"{said}\n")
