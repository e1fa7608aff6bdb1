"""Schedules and their history for people."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.timestamp_pb2 import Timestamp
from rich.table import Table
from rich.text import Text
from spawnmesh.session.v1 import budget_pb2, session_pb2
from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh_client.budget_texts import cost_text, time_text
from spawnmesh_client.view_of import enum_prefix

from spawnmesh_command.cli.show import console, plain, print_table, when
from spawnmesh_command.cli.thinking import level_name

_UTC = "UTC"
_DEFAULT_AGENT = "default"
_DUE = "%a %Y-%m-%d %H:%M"
_ROUNDING = (
    (timedelta(days=1), timedelta(hours=1)),
    (timedelta(hours=1), timedelta(minutes=1)),
    (timedelta(0), timedelta(seconds=1)),
)
"""A time of at least the first is rounded down to the second."""


def print_schedules(schedules: Sequence[pb.Schedule], now: datetime) -> None:
    """Print a row for each schedule. Next due times are relative to `now`."""
    print_table(
        ("schedule", "cron", "zone", "next", "last", "state"),
        (
            (
                one.name,
                one.cron,
                one.time_zone,
                until_text(one.upcoming_times[0], now) if one.upcoming_times else "",
                outcome_text(one.last_firing) if one.HasField("last_firing") else "",
                _state(one),
            )
            for one in schedules
        ),
    )


def print_schedule(schedule: pb.Schedule) -> None:
    """Print all of a schedule, and its next due times in its zone and in UTC."""
    grid = Table.grid(padding=(0, 2))
    for name, value in _rows(schedule):
        grid.add_row(Text(name, style="dim"), Text(plain(value)))
    console().print(grid)
    if not schedule.upcoming_times:
        return
    print()
    zone = _zone(schedule.time_zone)
    due = [time.ToDatetime(UTC) for time in schedule.upcoming_times]
    in_utc = [f"{time:{_DUE}} UTC" for time in due]
    if zone is None:
        print_table(("due",), ((text,) for text in in_utc))
    else:
        in_zone = [f"{time.astimezone(zone):{_DUE} %Z}" for time in due]
        print_table((f"due in {schedule.time_zone}", _UTC), zip(in_zone, in_utc, strict=True))


def print_firings(firings: Sequence[pb.ScheduleFiring]) -> None:
    """Print a row for each firing."""
    print_table(
        ("due", "fired", "by", "outcome", "session", "why"),
        (
            (
                when(one.due_time),
                when(one.fire_time),
                "run" if one.is_manual else "cron",
                outcome_text(one),
                one.session_id,
                one.error_message,
            )
            for one in firings
        ),
    )


def until_text(due: Timestamp, now: datetime) -> str:
    """Return the time until then in at most two units, such as `in 3h12m`, or `now`."""
    left = due.ToDatetime(UTC) - now
    if left <= timedelta(0):
        return "now"
    unit = next(unit for least, unit in _ROUNDING if left >= least)
    return f"in {time_text(left // unit * unit)}"


def outcome_text(firing: pb.ScheduleFiring) -> str:
    """Return the outcome, such as `spawned`, and for a failure its reason."""
    word = _word(pb.FiringOutcome.DESCRIPTOR, firing.outcome)
    return f"{word}: {firing.error_reason}" if firing.error_reason else word


def _rows(schedule: pb.Schedule) -> Iterator[tuple[str, str]]:
    spawn = schedule.spawn
    yield "schedule", schedule.name
    yield "cron", schedule.cron
    yield "zone", schedule.time_zone
    yield "state", _state(schedule)
    yield "task", spawn.task
    yield "agent", spawn.agent_id or _DEFAULT_AGENT
    for name, text in (("label", spawn.label), ("model", spawn.model), ("spawned", _kind(spawn))):
        if text:
            yield name, text
    if spawn.thinking:
        yield "thinking", level_name(spawn.thinking)
    yield from ((f"metadata.{key}", text) for key, text in sorted(spawn.metadata.items()))
    for file in spawn.references:
        yield "file", f"{file.set_id}/{file.name}" + (f":{file.new_name}" if file.new_name else "")
    if spawn.HasField("run_timeout"):
        yield "timeout", time_text(spawn.run_timeout)
    if spawn.HasField("budget"):
        yield "budget", ",".join(_limits(spawn.budget))
    yield "overlap", _word(pb.OverlapPolicy.DESCRIPTOR, schedule.overlap)
    yield "catch up", _word(pb.CatchUpPolicy.DESCRIPTOR, schedule.catch_up)
    if schedule.HasField("last_firing"):
        last = schedule.last_firing
        yield "last", "  ".join(filter(None, (when(last.due_time), outcome_text(last), last.session_id)))
    yield "created", when(schedule.create_time)
    if schedule.updated_by:
        yield "written by", schedule.updated_by
    yield "etag", schedule.etag


def _kind(spawn: pb.ScheduledSpawn) -> str:
    """Return the options of `put` that the spawn has."""
    chosen = {
        "open": spawn.mode == session_pb2.SESSION_MODE_SESSION,
        "keep": spawn.cleanup == session_pb2.CLEANUP_KEEP,
        "external": spawn.runtime == session_pb2.RUNTIME_EXTERNAL,
    }
    return ", ".join(word for word, is_chosen in chosen.items() if is_chosen)


def _limits(budget: budget_pb2.Budget) -> Iterator[str]:
    """Yield the limits as `--budget` takes them."""
    if budget.max_cost_micros:
        yield f"cost={cost_text(budget.max_cost_micros)}"
    if budget.max_token_count:
        yield f"tokens={budget.max_token_count}"
    if budget.max_model_call_count:
        yield f"calls={budget.max_model_call_count}"
    if budget.HasField("max_run_time"):
        yield f"time={time_text(budget.max_run_time)}"
    if budget.HasField("max_wait"):
        yield f"wait={time_text(budget.max_wait)}"


def _state(schedule: pb.Schedule) -> str:
    return "paused" if schedule.paused else "active"


def _word(enum: EnumDescriptor, value: int) -> str:
    """Return the word of a value; its number for one of a newer mesh."""
    known = enum.values_by_number.get(value)
    return known.name.removeprefix(enum_prefix(enum)).lower() if known else str(value)


def _zone(name: str) -> ZoneInfo | None:
    """Return the time zone; None for UTC and for one that this machine does not know."""
    try:
        return None if name in ("", _UTC) else ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None
