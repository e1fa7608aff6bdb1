"""Schedules of a session service in the test's own process."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh.session.v1 import schedule_service_pb2 as rpc
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.schedule_service_pb2_grpc import (
    ScheduleServiceServicer,
    add_ScheduleServiceServicer_to_server,
)
from spawnmesh_core.errors import MeshError
from spawnmesh_runtime.server import MeshServer

from tests.support.command.fake_mesh import (
    FakeMesh,
    FakeSessions,
    FakeTenants,
    FakeTranscript,
    served,
    write_mesh_file,
)

FIRED_SESSION_ID = "ses_00000000000000000000000000"
FIRING_ID = "fir_00000000000000000000000000"


@dataclass
class RecordedSchedules(ScheduleServiceServicer):
    """Record the requests, and answer them with the schedule and pages of the firings.

    `refusal` answers all calls, and `update_refusals` one update each.
    """

    schedule: pb.Schedule = field(default_factory=lambda: schedule_named("a"))
    pages: list[list[pb.ScheduleFiring]] = field(default_factory=lambda: [[]])
    requests: list[Any] = field(default_factory=list)
    refusal: MeshError | None = None
    update_refusals: list[MeshError] = field(default_factory=list)

    def add_to(self, server: MeshServer) -> None:
        """Register the RPCs for clients."""
        add_ScheduleServiceServicer_to_server(self, server)

    async def UpdateSchedule(self, request: Any, context: Any) -> Any:
        self._note(request)
        if self.update_refusals:
            raise self.update_refusals.pop()
        return rpc.UpdateScheduleResponse(schedule=self.schedule)

    async def GetSchedule(self, request: Any, context: Any) -> Any:
        self._note(request)
        return rpc.GetScheduleResponse(schedule=self.schedule)

    async def ListSchedules(self, request: Any, context: Any) -> Any:
        self._note(request)
        if request.page_token:
            return rpc.ListSchedulesResponse(schedules=[schedule_named("b")])
        return rpc.ListSchedulesResponse(schedules=[self.schedule], next_page_token="1")

    async def PauseSchedule(self, request: Any, context: Any) -> Any:
        self._note(request)
        return rpc.PauseScheduleResponse(schedule=self.schedule)

    async def ResumeSchedule(self, request: Any, context: Any) -> Any:
        self._note(request)
        return rpc.ResumeScheduleResponse(schedule=self.schedule)

    async def DeleteSchedule(self, request: Any, context: Any) -> Any:
        self._note(request)
        return rpc.DeleteScheduleResponse()

    async def RunSchedule(self, request: Any, context: Any) -> Any:
        self._note(request)
        return rpc.RunScheduleResponse(firing=firing_of(pb.FIRING_OUTCOME_SPAWNED, is_manual=True))

    async def ListScheduleFirings(self, request: Any, context: Any) -> Any:
        self._note(request)
        number = int(request.page_token or 0)
        more = str(number + 1) if number + 1 < len(self.pages) else ""
        return rpc.ListScheduleFiringsResponse(firings=self.pages[number], next_page_token=more)

    def _note(self, request: Any) -> None:
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal


def schedule_named(name: str) -> pb.Schedule:
    """Return an active schedule without due times and without a firing."""
    schedule = pb.Schedule(
        name=name,
        cron="0 9 * * 1-5",
        time_zone="Europe/Berlin",
        spawn=pb.ScheduledSpawn(
            task="Sum up.",
            agent_id="default",
            mode=session_pb2.SESSION_MODE_RUN,
            cleanup=session_pb2.CLEANUP_DELETE,
            runtime=session_pb2.RUNTIME_SUBAGENT,
            metadata={"team": "ops"},
        ),
        overlap=pb.OVERLAP_POLICY_SKIP,
        catch_up=pb.CATCH_UP_POLICY_NONE,
        updated_by="operator",
        etag="e1",
    )
    schedule.spawn.run_timeout.seconds = 3600
    schedule.create_time.FromSeconds(1)
    return schedule


def firing_of(outcome: "pb.FiringOutcome.ValueType", **fields: Any) -> pb.ScheduleFiring:
    """Return a firing that was due at 1 s and was fired at 2 s."""
    firing = pb.ScheduleFiring(
        **{"firing_id": FIRING_ID, "session_id": FIRED_SESSION_ID} | fields, outcome=outcome
    )
    firing.due_time.FromSeconds(1)
    firing.fire_time.FromSeconds(2)
    return firing


def stamps(*times: datetime) -> list[Timestamp]:
    """Return the times as messages."""
    found = []
    for time in times:
        stamp = Timestamp()
        stamp.FromDatetime(time)
        found.append(stamp)
    return found


@pytest.fixture
def schedules() -> RecordedSchedules:
    return RecordedSchedules()


@pytest.fixture
async def schedule_mesh(keys: Path, tmp_path: Path, schedules: RecordedSchedules) -> AsyncIterator[FakeMesh]:
    """Return a session service with the schedules that `mesh.json` names."""
    async with served("session", keys, schedules.add_to) as target:
        targets = {"session": target}
        write_mesh_file(tmp_path, keys, targets)
        yield FakeMesh(tmp_path, FakeSessions(), FakeTenants(), FakeTranscript(), targets)
