"""The schedules of a FakeMesh. Nothing is fired by the clock: RunSchedule alone spawns sessions."""

import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from zoneinfo import ZoneInfo

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh.session.v1 import schedule_service_pb2 as rpc
from spawnmesh.session.v1.session_service_pb2 import SpawnSessionRequest, SpawnSessionResponse
from spawnmesh_calls.field_masks import apply_changes, changed_paths
from spawnmesh_core.errors import FieldViolation, MeshError, invalid, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from spawnmesh_client.fake_agents import DEFAULT_AGENT, FakeAgents
from spawnmesh_client.fake_records import now

_EVERY_PATH = (("cron",), ("time_zone",), ("spawn",), ("overlap",), ("catch_up",))
_FIXED = frozenset(pb.Schedule.DESCRIPTOR.fields_by_name) - {name for (name,) in _EVERY_PATH}
_FIELD = r"[\w*,/#-]+"
_CRON = re.compile(rf"{_FIELD}(?: {_FIELD}){{4}}", re.ASCII)
_UTC = "UTC"
_KEY = "schedule"
_SUBJECT = "fake"

Spawn = Callable[[SpawnSessionRequest], Awaitable[SpawnSessionResponse]]


@dataclass(slots=True)
class FakeSchedule:
    """A schedule. `firings` are the calls of RunSchedule by their request ids, oldest first."""

    message: pb.Schedule
    schedule_id: str = field(default_factory=lambda: new_id(IdKind.SCHEDULE))
    firings: dict[str, pb.ScheduleFiring] = field(default_factory=dict)


class FakeSchedules:
    """Answer the calls about schedules. `spawn` is SpawnSession of the same mesh.

    No due times are computed: a line needs its five fields, and no more is checked.
    """

    def __init__(self, spawn: Spawn, agents: FakeAgents) -> None:
        self._spawn = spawn
        self._agents = agents
        self._schedules: dict[str, FakeSchedule] = {}
        self._changes = count(1)

    async def UpdateSchedule(self, request: rpc.UpdateScheduleRequest) -> rpc.UpdateScheduleResponse:
        given = request.schedule
        paths = changed_paths(request.update_mask, given, _FIXED)
        current = self._schedules.get(given.name)
        if current is None and (given.etag or not request.allow_missing):
            raise not_found("schedule", given.name)
        written = pb.Schedule(name=given.name, create_time=now())
        if current is not None:
            written.CopyFrom(current.message)
        apply_changes(_EVERY_PATH if current is None else paths, given, written)
        self._complete(written)
        if current is None:
            current = self._schedules[given.name] = FakeSchedule(written)
            self._note_change(current)
        elif current.message != written:
            _check_etag("schedule.etag", given.etag, current.message)
            current.message = written
            self._note_change(current)
        return rpc.UpdateScheduleResponse(schedule=_shown(current))

    async def GetSchedule(self, request: rpc.GetScheduleRequest) -> rpc.GetScheduleResponse:
        return rpc.GetScheduleResponse(schedule=_shown(self._schedule(request.name)))

    async def ListSchedules(self, request: rpc.ListSchedulesRequest) -> rpc.ListSchedulesResponse:
        found = [_shown(one) for _, one in sorted(self._schedules.items())]
        return rpc.ListSchedulesResponse(schedules=found)

    async def PauseSchedule(self, request: rpc.PauseScheduleRequest) -> rpc.PauseScheduleResponse:
        return rpc.PauseScheduleResponse(schedule=self._with_paused(request.name, True))

    async def ResumeSchedule(self, request: rpc.ResumeScheduleRequest) -> rpc.ResumeScheduleResponse:
        return rpc.ResumeScheduleResponse(schedule=self._with_paused(request.name, False))

    async def DeleteSchedule(self, request: rpc.DeleteScheduleRequest) -> rpc.DeleteScheduleResponse:
        if request.name in self._schedules:
            _check_etag("etag", request.etag, self._schedules[request.name].message)
            del self._schedules[request.name]
        return rpc.DeleteScheduleResponse()

    async def RunSchedule(self, request: rpc.RunScheduleRequest) -> rpc.RunScheduleResponse:
        schedule = self._schedule(request.name)
        if request.request_id not in schedule.firings:
            request_id = f"{schedule.schedule_id}:{request.request_id}"
            spawned = await self._spawn(_spawn_request(schedule.message, request_id))
            time = now()
            schedule.firings[request.request_id] = pb.ScheduleFiring(
                firing_id=new_id(IdKind.FIRING), due_time=time, fire_time=time,
                outcome=pb.FIRING_OUTCOME_SPAWNED, session_id=spawned.session.session_id, is_manual=True,
            )  # fmt: skip
        return rpc.RunScheduleResponse(firing=schedule.firings[request.request_id])

    async def ListScheduleFirings(
        self, request: rpc.ListScheduleFiringsRequest
    ) -> rpc.ListScheduleFiringsResponse:
        found = [
            one for one in reversed(self._schedule(request.name).firings.values())
            if request.outcome in (pb.FIRING_OUTCOME_UNSPECIFIED, one.outcome)
            and not _is_before(one.due_time, request.start_time)
            and (not request.HasField("end_time") or _is_before(one.due_time, request.end_time))
        ]  # fmt: skip
        return rpc.ListScheduleFiringsResponse(firings=found)

    def _schedule(self, name: str) -> FakeSchedule:
        if name not in self._schedules:
            raise not_found("schedule", name)
        return self._schedules[name]

    def _with_paused(self, name: str, paused: bool) -> pb.Schedule:
        schedule = self._schedule(name)
        if schedule.message.paused != paused:
            schedule.message.paused = paused
            self._note_change(schedule)
        return _shown(schedule)

    def _note_change(self, schedule: FakeSchedule) -> None:
        schedule.message.updated_by = _SUBJECT
        schedule.message.etag = hashlib.sha256(str(next(self._changes)).encode()).hexdigest()[:32]

    def _complete(self, schedule: pb.Schedule) -> None:
        """Fill in the defaults. Raises INVALID_REQUEST and UNKNOWN_AGENT."""
        schedule.cron = " ".join(schedule.cron.split())
        if not _CRON.fullmatch(schedule.cron):
            raise invalid("schedule.cron", "has five fields: minute, hour, day of month, month, day of week")
        schedule.time_zone = schedule.time_zone or _UTC
        if not _is_zone(schedule.time_zone):
            raise invalid("schedule.time_zone", "is no time zone of the IANA database")
        if not schedule.HasField("spawn"):
            raise invalid("schedule.spawn", "is required: it has the task")
        if not schedule.spawn.task.strip():
            raise invalid("schedule.spawn.task", "is required")
        self._agents.get(schedule.spawn.agent_id or DEFAULT_AGENT)
        schedule.overlap = schedule.overlap or pb.OVERLAP_POLICY_SKIP
        schedule.catch_up = schedule.catch_up or pb.CATCH_UP_POLICY_NONE


def _spawn_request(schedule: pb.Schedule, request_id: str) -> SpawnSessionRequest:
    spawn = schedule.spawn
    return SpawnSessionRequest(
        request_id=request_id, task=spawn.task, label=spawn.label, agent_id=spawn.agent_id,
        model=spawn.model, mode=spawn.mode, cleanup=spawn.cleanup, runtime=spawn.runtime,
        run_timeout=spawn.run_timeout if spawn.HasField("run_timeout") else None, thinking=spawn.thinking,
        metadata={**spawn.metadata, _KEY: schedule.name}, references=spawn.references,
        budget=spawn.budget if spawn.HasField("budget") else None,
    )  # fmt: skip


def _shown(schedule: FakeSchedule) -> pb.Schedule:
    """Return the schedule with its newest firing."""
    shown = pb.Schedule()
    shown.CopyFrom(schedule.message)
    if schedule.firings:
        shown.last_firing.CopyFrom(list(schedule.firings.values())[-1])
    return shown


def _is_zone(name: str) -> bool:
    """Return whether the machine knows the time zone. UTC is known without a database."""
    try:
        return name == _UTC or ZoneInfo(name).key == name
    except (KeyError, ValueError, OSError):
        return False


def _is_before(time: Timestamp, other: Timestamp) -> bool:
    return time.ToNanoseconds() < other.ToNanoseconds()


def _check_etag(field: str, etag: str, current: pb.Schedule) -> None:
    if etag not in ("", current.etag):
        raise MeshError(
            Reason.ETAG_DIFFERS,
            f"schedule {current.name} has changed; get it, apply the change to it, and call again with its"
            " etag",
            violations=(FieldViolation(field, "is the etag of another version"),),
            facts={"schedule": current.name, "etag": current.etag},
        )
