"""Views of schedules and of their history.

The fields are named as in the contracts, which say what each one means. Times are in UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import auto

from spawnmesh.session.v1 import schedule_pb2 as pb

from spawnmesh_client.attachments import ReferencedFile
from spawnmesh_client.budget_views import Budget, limits_view
from spawnmesh_client.view_of import Word, view_of
from spawnmesh_client.views import Cleanup, Runtime, SessionMode, ThinkingLevel


class OverlapPolicy(Word):
    """The effect of a due time while the session of an earlier firing goes on."""

    UNKNOWN = auto()
    SKIP = auto()
    ALLOW = auto()
    REPLACE = auto()


class CatchUpPolicy(Word):
    """The due times that are fired although they were missed."""

    UNKNOWN = auto()
    NONE = auto()
    LATEST = auto()
    ALL = auto()


class FiringOutcome(Word):
    """The results of a due time, or of a call of `run`."""

    UNKNOWN = auto()
    SPAWNED = auto()
    SKIPPED = auto()
    MISSED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class ScheduleFiring:
    """A due time, or a call of `run`, in the history of a schedule.

    `session_id` is the session that was spawned, and for SKIPPED the one that went on. For FAILED,
    `error_reason` is a reason such as `RUN_QUEUE_FULL`.
    """

    firing_id: str
    due_time: datetime | None
    fire_time: datetime | None
    outcome: FiringOutcome
    session_id: str
    error_reason: str
    error_message: str
    is_manual: bool


@dataclass(frozen=True, slots=True)
class ScheduledSpawn:
    """The session that a schedule spawns. A field that is None means the default of a spawn."""

    task: str
    label: str
    agent_id: str
    model: str
    mode: SessionMode | None
    cleanup: Cleanup | None
    runtime: Runtime | None
    run_timeout: timedelta | None
    thinking: ThinkingLevel | None
    metadata: Mapping[str, str]
    references: tuple[ReferencedFile, ...]
    budget: Budget | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """A cron line that spawns sessions.

    `upcoming_times` are the next five due times: none if it is paused. `updated_by` is the subject
    of the token that wrote it last.
    """

    name: str
    cron: str
    time_zone: str
    spawn: ScheduledSpawn
    overlap: OverlapPolicy
    catch_up: CatchUpPolicy
    paused: bool
    upcoming_times: tuple[datetime, ...]
    last_firing: ScheduleFiring | None
    create_time: datetime | None
    updated_by: str
    etag: str


def schedule_view(schedule: pb.Schedule) -> Schedule:
    """Return the view of a schedule."""
    spawn = schedule.spawn
    budget = limits_view(spawn.budget) if spawn.HasField("budget") else None
    return view_of(Schedule, schedule, spawn=view_of(ScheduledSpawn, spawn, budget=budget))


def firing_view(firing: pb.ScheduleFiring) -> ScheduleFiring:
    """Return the view of a firing."""
    return view_of(ScheduleFiring, firing)
