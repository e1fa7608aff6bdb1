"""The schedules of a tenant, which spawn sessions by the clock."""

import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.content.v1 import thinking_pb2
from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh.session.v1 import schedule_service_pb2 as rpc
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from spawnmesh_calls.field_masks import EVERY_FIELD
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_client.attachments import ReferencedFile, message_of
from spawnmesh_client.budget_views import Budget
from spawnmesh_client.budgets import budget_message
from spawnmesh_client.pages import paged
from spawnmesh_client.schedule_views import Schedule, ScheduleFiring, firing_view, schedule_view
from spawnmesh_client.times import seconds_of, stamp_of
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.view_of import duration_of, number_of
from spawnmesh_client.wire import WireMesh

if TYPE_CHECKING:
    from spawnmesh.session.v1.schedule_service_pb2_grpc import ScheduleServiceAsyncStub

_SPAWN_SECONDS = 60.0
_MOST_READS = 5
_SPAWN = "spawn"


class Schedules:
    """`mesh.schedules`.

    `task`, `agent`, `label`, `model`, `mode`, `cleanup`, `runtime`, `run_timeout`, `thinking`,
    `metadata` and `budget` are as for `mesh.spawn`. `references` are files that the mesh has.
    `overlap` and `catch_up` are words such as `OverlapPolicy.SKIP` or `"SKIP"`.
    """

    def __init__(self, wire: WireMesh) -> None:
        self._wire = wire

    async def put(
        self,
        name: str,
        *,
        cron: str,
        task: str,
        time_zone: str = "",
        agent: str = "",
        label: str = "",
        model: str = "",
        mode: str = "",
        cleanup: str = "",
        runtime: str = "",
        run_timeout: timedelta | float | None = None,
        thinking: str = "",
        metadata: Mapping[str, str] | None = None,
        budget: Budget | None = None,
        references: Sequence[ReferencedFile] = (),
        overlap: str = "",
        catch_up: str = "",
        etag: str = "",
    ) -> Schedule:
        """Create a schedule, or replace all of the one with this name.

        `cron` is a line such as `0 9 * * 1-5`, and `time_zone` one such as `Europe/Berlin`: `UTC`
        if it is empty. Raises ValueError for an unknown word, and InvalidRequest for a line that is
        never due and for an unknown zone; and with an etag, Conflict ETAG_DIFFERS if the schedule
        was changed since, and NotFound.
        """
        spawn = _spawn_of(
            {
                "task": task, "agent": agent, "label": label, "model": model, "mode": mode,
                "cleanup": cleanup, "runtime": runtime, "run_timeout": run_timeout,
                "thinking": thinking, "metadata": metadata, "budget": budget, "references": references,
            }
        )  # fmt: skip
        given = {"cron": cron, "time_zone": time_zone, "overlap": overlap, "catch_up": catch_up}
        schedule = pb.Schedule(name=name, spawn=spawn, etag=etag)
        schedule.MergeFrom(_line_of(given))
        return await self._update(schedule, [EVERY_FIELD], allow_missing=True)

    async def update(
        self,
        name: str,
        *,
        cron: str | EllipsisType = ...,
        time_zone: str | EllipsisType = ...,
        task: str | EllipsisType = ...,
        agent: str | EllipsisType = ...,
        label: str | EllipsisType = ...,
        model: str | EllipsisType = ...,
        mode: str | EllipsisType = ...,
        cleanup: str | EllipsisType = ...,
        runtime: str | EllipsisType = ...,
        run_timeout: timedelta | float | EllipsisType | None = ...,
        thinking: str | EllipsisType = ...,
        metadata: Mapping[str, str] | EllipsisType | None = ...,
        budget: Budget | EllipsisType | None = ...,
        references: Sequence[ReferencedFile] | EllipsisType = ...,
        overlap: str | EllipsisType = ...,
        catch_up: str | EllipsisType = ...,
        etag: str = "",
    ) -> Schedule:
        """Change what is given of a schedule, and nothing else.

        An empty value is the default of `put`. A change of the session that is spawned reads the
        schedule first. Raises NotFound, ValueError if nothing is given, and what `put` raises.
        """
        of_line = _given(cron=cron, time_zone=time_zone, overlap=overlap, catch_up=catch_up)
        of_spawn = _given(
            task=task, agent=agent, label=label, model=model, mode=mode, cleanup=cleanup, runtime=runtime,
            run_timeout=run_timeout, thinking=thinking, metadata=metadata, budget=budget,
            references=references,
        )  # fmt: skip
        if not of_line and not of_spawn:
            raise ValueError(f"name a field that changes: {', '.join((*_LINE_FIELDS, *_SPAWN_FIELDS))}")
        schedule, spawn = _line_of(of_line), _spawn_of(of_spawn)
        schedule.name, schedule.etag = name, etag
        if not of_spawn:
            return await self._update(schedule, list(of_line))
        return await self._update_spawn(schedule, spawn, list(of_line), list(of_spawn))

    async def _update_spawn(
        self, schedule: pb.Schedule, spawn: pb.ScheduledSpawn, of_line: list[str], of_spawn: list[str]
    ) -> Schedule:
        """Change these fields of the spawn, which the mesh replaces as a whole.

        Without an etag of the caller, read it again if another call has changed it since.
        """
        etag, reads = schedule.etag, 0
        while True:
            current = await self._read(schedule.name)
            reads += 1
            schedule.spawn.CopyFrom(current.spawn)
            for name in of_spawn:
                schedule.spawn.ClearField(_SPAWN_FIELDS[name])
            schedule.spawn.MergeFrom(spawn)
            schedule.etag = etag or current.etag
            try:
                return await self._update(schedule, [*of_line, _SPAWN])
            except MeshError as error:
                if etag or error.reason is not Reason.ETAG_DIFFERS or reads == _MOST_READS:
                    raise

    async def _update(
        self, schedule: pb.Schedule, paths: Sequence[str], *, allow_missing: bool = False
    ) -> Schedule:
        request = rpc.UpdateScheduleRequest(
            schedule=schedule, update_mask=FieldMask(paths=paths), allow_missing=allow_missing
        )
        return schedule_view((await self._peer.unary(self._stub.UpdateSchedule, request)).schedule)

    async def _read(self, name: str) -> pb.Schedule:
        answer = await self._peer.unary(self._stub.GetSchedule, rpc.GetScheduleRequest(name=name))
        return answer.schedule

    async def get(self, name: str) -> Schedule:
        """Return one schedule. Raises NotFound."""
        return schedule_view(await self._read(name))

    async def list(self) -> Sequence[Schedule]:
        """Return all schedules of the tenant, ordered by their names."""
        found = paged(self._peer, self._stub.ListSchedules, rpc.ListSchedulesRequest(), "schedules")
        return [schedule_view(schedule) async for schedule in found]

    async def pause(self, name: str) -> Schedule:
        """Fire nothing until the schedule is resumed. Its sessions go on. Raises NotFound."""
        answer = await self._peer.unary(self._stub.PauseSchedule, rpc.PauseScheduleRequest(name=name))
        return schedule_view(answer.schedule)

    async def resume(self, name: str) -> Schedule:
        """Fire the due times from now on. Raises NotFound."""
        answer = await self._peer.unary(self._stub.ResumeSchedule, rpc.ResumeScheduleRequest(name=name))
        return schedule_view(answer.schedule)

    async def delete(self, name: str, *, etag: str = "") -> None:
        """Delete the schedule with its history, if it exists. Its sessions go on.

        With an etag, delete this version alone. Raises Conflict ETAG_DIFFERS.
        """
        request = rpc.DeleteScheduleRequest(name=name, etag=etag)
        await self._peer.unary(self._stub.DeleteSchedule, request)

    async def run(self, name: str, request_id: str | None = None) -> ScheduleFiring:
        """Spawn the session now, also if the schedule is paused, and return the firing.

        `mesh.session(firing.session_id)` is the session. A repeat of the `request_id` returns the
        same firing. Raises NotFound, and what `mesh.spawn` raises.
        """
        request = rpc.RunScheduleRequest(name=name, request_id=request_id or uuid.uuid4().hex)
        answer = await self._peer.unary(self._stub.RunSchedule, request, timeout_seconds=_SPAWN_SECONDS)
        return firing_view(answer.firing)

    async def firings(
        self,
        name: str,
        *,
        outcome: str = "",
        since: datetime | timedelta | None = None,
        before: datetime | None = None,
    ) -> AsyncIterator[ScheduleFiring]:
        """Yield the firings of a schedule that fulfil all given conditions, newest due time first.

        `outcome` is a word such as `FiringOutcome.FAILED` or `"FAILED"`. `since` is the oldest due
        time, or how long ago that is. Raises ValueError for an unknown word and for a time without
        a zone, and NotFound.
        """
        request = rpc.ListScheduleFiringsRequest(
            name=name,
            outcome=pb.FiringOutcome.ValueType(number_of(outcome, pb.FiringOutcome.DESCRIPTOR)),
            start_time=None if since is None else stamp_of(since),
            end_time=None if before is None else stamp_of(before),
        )
        async for one in paged(self._peer, self._stub.ListScheduleFirings, request, "firings"):
            yield firing_view(one)

    @property
    def _peer(self) -> TokenPeer:
        return self._wire.service("session")

    @property
    def _stub(self) -> "ScheduleServiceAsyncStub":
        return ScheduleServiceStub(self._peer.channel)


_LINE_FIELDS = ("cron", "time_zone", "overlap", "catch_up")
_SPAWN_FIELDS: dict[str, Any] = {
    "task": "task", "agent": "agent_id", "label": "label", "model": "model", "mode": "mode",
    "cleanup": "cleanup", "runtime": "runtime", "run_timeout": "run_timeout", "thinking": "thinking",
    "metadata": "metadata", "budget": "budget", "references": "references",
}  # fmt: skip
"""The fields of a spawn by the names of the arguments."""
_ENUMS: dict[str, Any] = {
    "overlap": pb.OverlapPolicy.DESCRIPTOR,
    "catch_up": pb.CatchUpPolicy.DESCRIPTOR,
    "mode": session_pb2.SessionMode.DESCRIPTOR,
    "cleanup": session_pb2.Cleanup.DESCRIPTOR,
    "runtime": session_pb2.Runtime.DESCRIPTOR,
    "thinking": thinking_pb2.ThinkingLevel.DESCRIPTOR,
}
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "run_timeout": lambda time: duration_of(seconds_of(time)),
    "metadata": dict,
    "budget": budget_message,
    "references": lambda files: [message_of(one) for one in files],
}


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not isinstance(value, EllipsisType)}


def _line_of(given: Mapping[str, Any]) -> pb.Schedule:
    return pb.Schedule(**{name: _wire_value(name, value) for name, value in given.items()})


def _spawn_of(given: Mapping[str, Any]) -> pb.ScheduledSpawn:
    """Return the message of what is given. Raises ValueError as `mesh.spawn`."""
    return pb.ScheduledSpawn(
        **{_SPAWN_FIELDS[name]: _wire_value(name, value) for name, value in given.items()}
    )


def _wire_value(name: str, value: Any) -> Any:
    if name in _ENUMS:
        return number_of(value, _ENUMS[name])
    return value if value is None else _CONVERSIONS.get(name, lambda same: same)(value)
