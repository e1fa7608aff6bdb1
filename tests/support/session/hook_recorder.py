"""A hook service that records the events which the worker of the session service publishes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceServicer, add_HookServiceServicer_to_server
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh_session.domain.job_kinds import FOLLOW_UPS

from tests.support.session.harness import Mesh
from tests.support.session.worker import job_worker_of, make_due


@dataclass
class HookRecorder(HookServiceServicer):
    """Records events. While it is `losing` answers, each call fails after its events are stored."""

    mesh: Mesh
    superuser_dsn: str
    target: str = ""
    losing: bool = False
    received: list[ObservedEvent] = field(default_factory=list)

    async def PublishEvents(self, request: Any, context: Any) -> hook_pb.PublishEventsResponse:
        self.received += request.events
        if self.losing:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
        return hook_pb.PublishEventsResponse()

    async def published(self, *session_ids: str) -> list[ObservedEvent]:
        """Do the jobs that are due, and return all events of the sessions that came so far."""
        await make_due(self.superuser_dsn, self.mesh.tenant)
        settings = self.mesh.settings.model_copy(update={"hook_target": self.target, "log_level": "critical"})
        async with job_worker_of(settings) as worker:
            await worker.run_due(*FOLLOW_UPS)
        return [event for event in self.received if event.session_id in session_ids]


@asynccontextmanager
async def recording(mesh: Mesh, superuser_dsn: str) -> AsyncIterator[HookRecorder]:
    """Serve a recorder for the worker of the session service."""
    recorder, server = HookRecorder(mesh, superuser_dsn), grpc.aio.server()
    add_HookServiceServicer_to_server(recorder, server)
    recorder.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield recorder
    finally:
        await server.stop(None)
