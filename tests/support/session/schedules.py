"""Schedules: calls of ScheduleService, and a clock that tests set by moving what is stored."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh.session.v1 import schedule_service_pb2 as service_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_calls
from spawnmesh.session.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.jobs.job import Again, ClaimedJob
from spawnmesh_runtime.impersonation import impersonate, use_token
from spawnmesh_session.domain.job_kinds import FIRE_SCHEDULE
from spawnmesh_session.jobs.schedules import ScheduleJobs
from spawnmesh_session.operations.scheduled_spawns import SpawnScheduled
from spawnmesh_session.settings import SessionSettings

from tests.support.serving import client_tokens
from tests.support.session.crashing import CrashingDatabase, Steps
from tests.support.session.harness import Mesh
from tests.support.session.tables import rows, superuser
from tests.support.session.worker import components_of, job_worker_of

SPAWNED, SKIPPED = pb.FIRING_OUTCOME_SPAWNED, pb.FIRING_OUTCOME_SKIPPED
MISSED, FAILED = pb.FIRING_OUTCOME_MISSED, pb.FIRING_OUTCOME_FAILED
SKIP, ALLOW, REPLACE = pb.OVERLAP_POLICY_SKIP, pb.OVERLAP_POLICY_ALLOW, pb.OVERLAP_POLICY_REPLACE
NONE, LATEST, ALL = pb.CATCH_UP_POLICY_NONE, pb.CATCH_UP_POLICY_LATEST, pb.CATCH_UP_POLICY_ALL
EVERY_MINUTE = "* * * * *"
DAY = timedelta(days=1)
_PAST = timedelta(hours=2)

Attempt = Callable[[], Awaitable[Again | None]]
Wrap = Callable[[SpawnScheduled], SpawnScheduled]


@dataclass(frozen=True)
class Clockwork:
    """The schedules of the mesh's tenant, and the worker that fires them."""

    mesh: Mesh
    postgres: Any

    async def call(self, rpc: str, request: Any, tenant: str = "") -> Any:
        stub = ScheduleServiceStub(self.mesh.peer.channel)
        token = client_tokens(self.mesh.keys).client_token(tenant or self.mesh.tenant, "test", 600)
        with use_token(token):
            return await self.mesh.peer.unary(getattr(stub, rpc), request, timeout_seconds=60.0)

    async def refusal(self, rpc: str, request: Any, tenant: str = "") -> MeshError:
        with pytest.raises(MeshError) as caught:
            await self.call(rpc, request, tenant)
        return caught.value

    async def put(
        self, cron: str = EVERY_MINUTE, *, name: str = "nightly", task: str = "Sum up.", **fields: Any
    ) -> pb.Schedule:
        spawn = fields.pop("spawn", None) or pb.ScheduledSpawn(task=task)
        return await self.update("*", allow_missing=True, name=name, cron=cron, spawn=spawn, **fields)

    async def put_daily(self, **fields: Any) -> pb.Schedule:
        """Put a schedule that was due two hours ago, and is due again a day later. Nothing else of it
        becomes due while a test runs, and a day that passes has one due time.
        """
        due = await self.now() - _PAST
        return await self.put(f"{due.minute} {due.hour} * * *", **{"catch_up": ALL, **fields})

    async def update(self, *paths: str, allow_missing: bool = False, **fields: Any) -> pb.Schedule:
        request = update_of(*paths, allow_missing=allow_missing, **fields)
        answer: service_pb.UpdateScheduleResponse = await self.call("UpdateSchedule", request)
        return answer.schedule

    async def update_refusal(self, *paths: str, allow_missing: bool = True, **fields: Any) -> MeshError:
        request = update_of(*paths, allow_missing=allow_missing, **fields)
        return await self.refusal("UpdateSchedule", request)

    async def get(self, name: str = "nightly") -> pb.Schedule:
        answer = await self.call("GetSchedule", service_pb.GetScheduleRequest(name=name))
        found: pb.Schedule = answer.schedule
        return found

    async def pause(self, name: str = "nightly") -> pb.Schedule:
        answer = await self.call("PauseSchedule", service_pb.PauseScheduleRequest(name=name))
        found: pb.Schedule = answer.schedule
        return found

    async def resume(self, name: str = "nightly") -> pb.Schedule:
        answer = await self.call("ResumeSchedule", service_pb.ResumeScheduleRequest(name=name))
        found: pb.Schedule = answer.schedule
        return found

    async def delete(self, name: str = "nightly", etag: str = "") -> None:
        await self.call("DeleteSchedule", service_pb.DeleteScheduleRequest(name=name, etag=etag))

    async def run(self, name: str = "nightly", request_id: str = "") -> pb.ScheduleFiring:
        request = service_pb.RunScheduleRequest(name=name, request_id=request_id or uuid4().hex)
        found: pb.ScheduleFiring = (await self.call("RunSchedule", request)).firing
        return found

    async def history(self, name: str = "nightly", **conditions: Any) -> list[pb.ScheduleFiring]:
        """Return the firings, newest due time first."""
        request = service_pb.ListScheduleFiringsRequest(name=name, **conditions)
        return list((await self.call("ListScheduleFirings", request)).firings)

    async def outcomes(self) -> list["pb.FiringOutcome.ValueType"]:
        """Return the outcomes, oldest due time first."""
        return [one.outcome for one in reversed(await self.history())]

    async def sessions(self) -> list[session_pb2.Session]:
        """Return the tenant's sessions, oldest first."""
        request = session_calls.ListSessionsRequest(page_size=500)
        found = (await self.mesh.client(self.mesh.sessions.ListSessions, request)).sessions
        return sorted(found, key=lambda one: str(one.session_id))

    async def is_going_on(self, session_id: str) -> bool:
        """Return whether the newest run has not ended."""
        session = await self.mesh.get(session_id)
        return session.latest_run.state == session_pb2.RUN_STATE_QUEUED

    async def kill(self, session_id: str) -> None:
        request = session_calls.KillSessionRequest(session_id=session_id)
        await self.mesh.client(self.mesh.sessions.KillSession, request)

    async def delete_session(self, session_id: str) -> None:
        request = session_calls.DeleteSessionRequest(session_id=session_id)
        await self.mesh.client(self.mesh.sessions.DeleteSession, request)

    async def now(self) -> datetime:
        """Return the time of the database."""
        [row] = await rows(self.postgres, "select now() as now")
        now: datetime = row["now"]
        return now.astimezone(UTC)

    async def pass_time(self, time: timedelta) -> None:
        """Let the schedules believe that so much time has passed: move their cursors back, and make
        their jobs due.
        """
        await self.execute(
            "update session.schedules set cursor_time = cursor_time - %(time)s where tenant_id = %(tenant)s",
            time=time,
        )
        await self.make_due()

    async def make_due(self) -> None:
        """Let the jobs be due, also if a worker that is lost has claimed them: its time is over."""
        await self.execute("update session.schedules set busy_until = null where tenant_id = %(tenant)s")
        await self.execute(
            "update session.jobs set due_time = now() where tenant_id = %(tenant)s and kind = %(kind)s",
            kind=FIRE_SCHEDULE,
        )

    async def age_firings(self, time: timedelta) -> None:
        """Let the firings be so much older. Due times stay as they are."""
        await self.execute(
            "update session.schedule_firings set fire_time = fire_time - %(time)s,"
            " attempt_time = attempt_time - %(time)s where tenant_id = %(tenant)s",
            time=time,
        )

    async def execute(self, statement: str, **values: Any) -> None:
        async with superuser(self.postgres) as link:
            await link.execute(statement.encode(), {"tenant": self.mesh.tenant, **values})

    async def stored(self, table: str) -> list[dict[str, Any]]:
        """Return the tenant's rows of the table."""
        return await rows(
            self.postgres, f"select * from session.{table} where tenant_id = %s", self.mesh.tenant
        )

    async def jobs(self) -> list[dict[str, Any]]:
        return [row for row in await self.stored("jobs") if row["kind"] == FIRE_SCHEDULE]

    async def fire(self, settings: SessionSettings | None = None) -> None:
        """Let a worker fire what is due, also of the tenants of other tests."""
        async with job_worker_of(settings or self.mesh.settings) as worker:
            await worker.run_due(FIRE_SCHEDULE)

    @asynccontextmanager
    async def attempts(self, wrap: Wrap | None = None, steps: Steps | None = None) -> AsyncIterator[Attempt]:
        """Yield what makes an attempt at the only job, as a worker does, and records nothing of it.

        The worker's spawn is wrapped, and its transactions are steps.
        """
        async with components_of(self.mesh.settings) as components:
            database: Any = components.database
            if steps is not None:
                database = CrashingDatabase(database, steps)
            spawner = replace(components.scheduled, database=database)
            if wrap is not None:
                spawner = replace(spawner, spawn=wrap(spawner.spawn))
            handler = ScheduleJobs(database, spawner)

            async def attempt() -> Again | None:
                [row] = await self.jobs()
                job = ClaimedJob(self.mesh.tenant, FIRE_SCHEDULE, row["key"], uuid4(), 1, {}, "")
                with impersonate(self.mesh.tenant):
                    return await handler.fire_schedule(job)

            yield attempt


def update_of(*paths: str, allow_missing: bool = False, **fields: Any) -> service_pb.UpdateScheduleRequest:
    schedule = pb.Schedule(**{"name": "nightly", **fields})
    request = service_pb.UpdateScheduleRequest(schedule=schedule, allow_missing=allow_missing)
    request.update_mask.paths.extend(paths)
    return request


def assert_refused(error: MeshError, reason: Reason, *texts: str) -> None:
    assert error.reason == reason
    assert [text for text in texts if text not in str(error)] == []


def times_of(firings: Sequence[pb.ScheduleFiring]) -> list[datetime]:
    return [one.due_time.ToDatetime(tzinfo=UTC) for one in firings]
