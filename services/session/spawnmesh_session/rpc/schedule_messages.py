"""Parses and renders messages that several RPCs of ScheduleService share."""

from contextlib import suppress
from datetime import datetime

from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_core.errors import invalid

from spawnmesh_session.domain.schedules import (
    DEFAULT_ZONE,
    UPCOMING_COUNT,
    CatchUpPolicy,
    Firing,
    FiringOutcome,
    OverlapPolicy,
    Schedule,
    upcoming_due,
)
from spawnmesh_session.rpc.messages import parse_enum, parse_text

_OVERLAP = "OVERLAP_POLICY_"
_CATCH_UP = "CATCH_UP_POLICY_"
_OUTCOME = "FIRING_OUTCOME_"


def parse_schedule(message: pb.Schedule, current: Schedule | None, updated_by: str) -> Schedule:
    """Return the schedule with what people change from the message, and the rest from `current`.

    Raise INVALID_REQUEST for one without a task, and for a text with a NUL. The cron line is not
    checked.
    """
    if not message.HasField("spawn"):
        raise invalid("schedule.spawn", "is required: it has the task")
    if not message.spawn.task.strip():  # A mask may name the task without a value.
        raise invalid("schedule.spawn.task", "is required")
    return Schedule(
        name=message.name,
        cron=" ".join(parse_text("schedule.cron", message.cron).split()),
        time_zone=parse_text("schedule.time_zone", message.time_zone) or DEFAULT_ZONE,
        spawn=message.spawn.SerializeToString(deterministic=True),
        overlap=_parse_overlap(message.overlap),
        catch_up=_parse_catch_up(message.catch_up),
        schedule_id=current.schedule_id if current else "",
        version=current.version if current else 0,
        updated_by=updated_by,
    )


def render_schedule(
    schedule: Schedule, now: datetime, newest: Firing | None, upcoming_count: int = UPCOMING_COUNT
) -> pb.Schedule:
    """Render the schedule with its next due times after now, and its newest firing.

    A schedule whose time zone does not exist any more has no due times.
    """
    upcoming: list[datetime] = []
    if not schedule.paused and upcoming_count:
        with suppress(KeyError):
            upcoming = upcoming_due(schedule.cron, schedule.time_zone, now, upcoming_count)
    return pb.Schedule(
        name=schedule.name,
        cron=schedule.cron,
        time_zone=schedule.time_zone,
        spawn=pb.ScheduledSpawn.FromString(schedule.spawn),
        overlap=pb.OverlapPolicy.Value(f"{_OVERLAP}{schedule.overlap}"),
        catch_up=pb.CatchUpPolicy.Value(f"{_CATCH_UP}{schedule.catch_up}"),
        paused=schedule.paused,
        upcoming_times=map(timestamp_of, upcoming),
        last_firing=render_firing(newest) if newest else None,
        create_time=timestamp_of(schedule.create_time),
        updated_by=schedule.updated_by,
        etag=schedule.etag,
    )


def render_firing(firing: Firing) -> pb.ScheduleFiring:
    """Render a firing of the history."""
    return pb.ScheduleFiring(
        firing_id=firing.firing_id,
        due_time=timestamp_of(firing.due_time),
        fire_time=timestamp_of(firing.fire_time),
        outcome=pb.FiringOutcome.Value(f"{_OUTCOME}{firing.outcome}"),
        session_id=firing.session_id,
        error_reason=firing.error_reason,
        error_message=firing.error_message,
        is_manual=firing.is_manual,
    )


def parse_outcome(outcome: int) -> FiringOutcome | None:
    """Return the outcome of a request; None for any."""
    return FiringOutcome(parse_enum(pb.FiringOutcome, outcome, _OUTCOME)) if outcome else None


def _parse_overlap(policy: int) -> OverlapPolicy:
    return OverlapPolicy(parse_enum(pb.OverlapPolicy, policy, _OVERLAP)) if policy else OverlapPolicy.SKIP


def _parse_catch_up(policy: int) -> CatchUpPolicy:
    return CatchUpPolicy(parse_enum(pb.CatchUpPolicy, policy, _CATCH_UP)) if policy else CatchUpPolicy.NONE
