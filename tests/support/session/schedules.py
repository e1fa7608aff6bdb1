"""Schedules: calls of ScheduleService, and a clock that tests set by moving what is stored."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh.session.v1 import schedule_service_pb2 as service_pb
from spawnmesh.session.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_session.domain.job_kinds import FIRE_SCHEDULE

from tests.support.serving import client_tokens
from tests.support.session.harness import Mesh
from tests.support.session.tables import superuser
from tests.support.session.worker import job_worker_of

SPAWNED, SKIPPED = pb.FIRING_OUTCOME_SPAWNED, pb.FIRING_OUTCOME_SKIPPED
MISSED, FAILED = pb.FIRING_OUTCOME_MISSED, pb.FIRING_OUTCOME_FAILED
EVERY_MINUTE = "* * * * *"


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

    async def put(
        self, cron: str = EVERY_MINUTE, *, name: str = "nightly", task: str = "Sum up.", **fields: Any
    ) -> pb.Schedule:
        spawn = fields.pop("spawn", None) or pb.ScheduledSpawn(task=task)
        schedule = pb.Schedule(name=name, cron=cron, spawn=spawn, **fields)
        request = service_pb.UpdateScheduleRequest(schedule=schedule, allow_missing=True)
        request.update_mask.paths.append("*")
        answer: service_pb.UpdateScheduleResponse = await self.call("UpdateSchedule", request)
        return answer.schedule

    async def get(self, name: str = "nightly") -> pb.Schedule:
        answer = await self.call("GetSchedule", service_pb.GetScheduleRequest(name=name))
        found: pb.Schedule = answer.schedule
        return found

    async def history(self, name: str = "nightly", **conditions: Any) -> list[pb.ScheduleFiring]:
        """Return the firings, newest due time first."""
        request = service_pb.ListScheduleFiringsRequest(name=name, **conditions)
        return list((await self.call("ListScheduleFirings", request)).firings)

    async def pass_time(self, time: timedelta) -> None:
        """Let the schedules believe that so much time has passed: move their cursors back, and make
        their jobs due.
        """
        async with superuser(self.postgres) as link:
            await link.execute(
                "update session.schedules set cursor_time = cursor_time - %s::interval where tenant_id = %s",
                (time, self.mesh.tenant),
            )
            await link.execute(
                "update session.jobs set due_time = now() where tenant_id = %s and kind = %s",
                (self.mesh.tenant, FIRE_SCHEDULE),
            )

    async def fire(self) -> None:
        """Let a worker fire what is due."""
        async with job_worker_of(self.mesh.settings) as worker:
            await worker.run_due(FIRE_SCHEDULE)
