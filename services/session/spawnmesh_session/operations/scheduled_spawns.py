"""The spawns of schedules: at their due times, and at a call."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime

from spawnmesh.session.v1.schedule_pb2 import ScheduledSpawn
from spawnmesh.session.v1.session_service_pb2 import SpawnSessionRequest
from spawnmesh_core.audit_event import Record, work_event
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_session.domain.job_kinds import WORKER
from spawnmesh_session.domain.schedules import (
    FAILED_AFTER,
    KEPT_SESSION_COUNT,
    Firing,
    FiringOutcome,
    OverlapPolicy,
    Schedule,
    firing_id_of_call,
    firing_id_of_due,
    is_too_old,
)
from spawnmesh_session.domain.sessions import Session, SessionState
from spawnmesh_session.domain.spawns import may_succeed_later
from spawnmesh_session.operations.family_kill import FamilyKiller
from spawnmesh_session.store import runs, schedules, sessions, spawns

SpawnScheduled = Callable[[str, SpawnSessionRequest], Awaitable[Session]]
"""Spawns the session of a request for the tenant, as a client of it."""

NAME_KEY = "schedule"
"""The key of a session's metadata with the name of its schedule."""

_SPAWN_SESSION = "spawnmesh.session.v1.SessionService/SpawnSession"
_KILL_SESSION = "spawnmesh.session.v1.SessionService/KillSession"


def spawn_request_of(schedule: Schedule, request_id: str) -> SpawnSessionRequest:
    """Return the request that spawns a session of the schedule."""
    given = ScheduledSpawn.FromString(schedule.spawn)
    request = SpawnSessionRequest(request_id=request_id)
    for field, value in given.ListFields():
        target = getattr(request, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            target.update(value)
        elif field.is_repeated:
            target.extend(value)
        elif field.message_type is not None:
            target.CopyFrom(value)
        else:
            setattr(request, field.name, value)
    request.metadata[NAME_KEY] = schedule.name
    return request


@dataclass(frozen=True, slots=True)
class ScheduledSpawner:
    """Fires due times, and schedules that are called. Every step may be repeated."""

    database: Database
    killer: FamilyKiller
    spawn: SpawnScheduled
    record: Record

    async def fire(self, tenant_id: str, schedule: Schedule, due: Firing, now: datetime) -> None:
        """Fire a due time by the overlap policy, and write its result.

        Raise the refusal of a spawn that may succeed later, unless it was tried for long enough.
        Nothing is fired for a schedule that was paused or deleted since it was read.
        """
        request = spawn_request_of(schedule, _request_id_of(due.firing_id))
        if (spawned := await self._spawned(tenant_id, request.request_id)) is not None:
            await self._end_spawned(tenant_id, schedule, due, spawned)
            return
        if is_too_old(schedule, due, now):
            await self._end(tenant_id, schedule, due, FiringOutcome.MISSED)
            return
        going_on = await self._going_on(tenant_id, schedule)
        if going_on and schedule.overlap is OverlapPolicy.SKIP:
            await self._end(tenant_id, schedule, due, FiringOutcome.SKIPPED, session_id=going_on[-1])
            return
        attempt_time = await self._begin_attempt(tenant_id, schedule, due)
        if attempt_time is None:
            return
        try:
            if schedule.overlap is OverlapPolicy.REPLACE:
                for session_id in going_on:
                    await self._kill(tenant_id, session_id)
            session = await self.spawn(tenant_id, request)
        except MeshError as error:
            # An attempt with an earlier content of the schedule is in progress, or is being undone.
            is_other_attempt = refused_with(error, Reason.REQUEST_ID_REUSED)
            if (is_other_attempt or may_succeed_later(error)) and now - attempt_time < FAILED_AFTER:
                raise
            await self._end(tenant_id, schedule, due, FiringOutcome.FAILED, error=error)
            return
        await self._end_spawned(tenant_id, schedule, due, session.session_id)

    async def run_now(self, tenant_id: str, name: str, request_id: str) -> Firing:
        """Spawn the session of the schedule, and return the firing. A repeat returns the first one.

        Raise NOT_FOUND, and the refusals of a spawn.
        """
        async with self.database.pipelined(tenant_id) as connection:
            schedule = await schedules.get_schedule(connection, tenant_id, name)
            now = await runs.read_time(connection)
            firing_id = firing_id_of_call(schedule.schedule_id, request_id)
            known = await schedules.find_firing(connection, tenant_id, schedule.schedule_id, firing_id)
        if known is not None:
            return known
        request = spawn_request_of(schedule, _request_id_of(firing_id))
        session_id = await self._spawned(tenant_id, request.request_id)
        if session_id is None:
            session_id = (await self.spawn(tenant_id, request)).session_id
        firing = Firing(firing_id, now, now, FiringOutcome.SPAWNED, session_id, is_manual=True)
        async with self.database.pipelined(tenant_id) as connection:
            locked = await schedules.lock_schedule_by_id(connection, tenant_id, schedule.schedule_id)
            if locked is None:  # It was deleted meanwhile, and has no history.
                return firing
            if await schedules.insert_firing(connection, tenant_id, schedule.schedule_id, firing):
                await _add_session(connection, tenant_id, locked, session_id)
            stored = await schedules.find_firing(connection, tenant_id, schedule.schedule_id, firing_id)
        return stored or firing

    async def _spawned(self, tenant_id: str, request_id: str) -> str | None:
        """Return the session that an attempt has spawned whose result was not written.

        The schedule may have changed since then, and the session may be deleted.
        """
        async with self.database.pipelined(tenant_id) as connection:
            known = await spawns.find_spawn_of_client(connection, tenant_id, request_id)
        is_spawned = known is not None and known.failure is None and known.state != SessionState.PROVISIONING
        return known.session_id if known is not None and is_spawned else None

    async def _going_on(self, tenant_id: str, schedule: Schedule) -> list[str]:
        """Return the sessions that the schedule has spawned and that go on, oldest first."""
        if schedule.overlap is OverlapPolicy.ALLOW:
            return []
        going_on = []
        for session_id in schedule.session_ids:
            try:
                session = await sessions.get_session(self.database, tenant_id, session_id)
            except MeshError as error:
                if not refused_with(error, Reason.NOT_FOUND):
                    raise
            else:
                if not session.is_done:
                    going_on.append(session_id)
        return going_on

    async def _begin_attempt(self, tenant_id: str, schedule: Schedule, due: Firing) -> datetime | None:
        """Return the time of the first attempt; None if the due time does not count any more."""
        async with self.database.pipelined(tenant_id) as connection:
            locked = await schedules.lock_schedule_by_id(connection, tenant_id, schedule.schedule_id)
            if locked is None or locked.paused:
                return None
            now = await runs.read_time(connection)
            return await schedules.begin_attempt(
                connection, tenant_id, schedule.schedule_id, due.firing_id, now
            )

    async def _kill(self, tenant_id: str, session_id: str) -> None:
        try:
            await self.killer.kill(tenant_id, session_id, None)
        except MeshError as error:
            if not refused_with(error, Reason.NOT_FOUND):
                raise
            return
        self.record(work_event(WORKER, tenant_id, _KILL_SESSION, utc_now(), ("session_id", session_id)))

    async def _end_spawned(self, tenant_id: str, schedule: Schedule, due: Firing, session_id: str) -> None:
        """Record the spawn in the audit log, again after a crash, and write the result."""
        self.record(work_event(WORKER, tenant_id, _SPAWN_SESSION, utc_now(), ("session_id", session_id)))
        await self._end(tenant_id, schedule, due, FiringOutcome.SPAWNED, session_id=session_id)

    async def _end(
        self,
        tenant_id: str,
        schedule: Schedule,
        due: Firing,
        outcome: FiringOutcome,
        *,
        session_id: str = "",
        error: MeshError | None = None,
    ) -> None:
        """Write the result, unless the schedule was deleted or another worker has written it.

        A due time that does not count any more since the spawn is in the history all the same.
        """
        async with self.database.pipelined(tenant_id) as connection:
            locked = await schedules.lock_schedule_by_id(connection, tenant_id, schedule.schedule_id)
            if locked is None:
                return
            ended = replace(
                due,
                outcome=outcome,
                fire_time=await runs.read_time(connection),
                session_id=session_id,
                error_reason=error.reason if error else "",
                error_message=error.message if error else "",
            )
            is_first = await schedules.end_firing(connection, tenant_id, schedule.schedule_id, ended)
            if outcome is not FiringOutcome.SPAWNED:
                return
            if is_first or await schedules.insert_firing(connection, tenant_id, schedule.schedule_id, ended):
                await _add_session(connection, tenant_id, locked, session_id)


async def _add_session(connection: Connection, tenant_id: str, locked: Schedule, session_id: str) -> None:
    """Add a session to those of the locked schedule that may go on."""
    kept = [*(one for one in locked.session_ids if one != session_id), session_id][-KEPT_SESSION_COUNT:]
    await schedules.set_sessions(connection, tenant_id, locked.schedule_id, kept)


def _request_id_of(firing_id: str) -> str:
    """Return the request_id of the spawn, so that the firing has one session."""
    return f"schedule:{firing_id}"


async def store_due(
    connection: Connection,
    tenant_id: str,
    schedule_id: str,
    due_time: datetime,
    outcome: FiringOutcome,
    now: datetime,
) -> None:
    """Store a due time that is to be fired, or that was missed."""
    firing_id = firing_id_of_due(schedule_id, due_time)
    firing = Firing(firing_id, due_time, now, outcome)
    await schedules.insert_firing(connection, tenant_id, schedule_id, firing)
