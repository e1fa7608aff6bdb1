"""All five services with healthy replicas, which a test makes ill, for `spawnmesh doctor`."""

import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import pytest
from opentelemetry.trace import NoOpTracer
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import (
    AttachmentBlobServiceServicer,
    add_AttachmentBlobServiceServicer_to_server,
)
from spawnmesh.deployment.v1 import deployment_service_pb2 as deployment
from spawnmesh.deployment.v1.deployment_service_pb2_grpc import (
    DeploymentServiceServicer,
    add_DeploymentServiceServicer_to_server,
)
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceServicer, add_HookServiceServicer_to_server
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import (
    ModelRouterServiceServicer,
    add_ModelRouterServiceServicer_to_server,
)
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import (
    TranscriptServiceServicer,
    add_TranscriptServiceServicer_to_server,
)
from spawnmesh_core.clock import utc_now
from spawnmesh_runtime.health import Health
from spawnmesh_runtime.jwks import JwksFile
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import build_server
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import AUDIENCE, TokenVerifier
from structlog.testing import capture_logs

from tests.support.command.fake_mesh import (
    FakeMesh,
    FakeSessions,
    FakeTranscript,
    add_sessions,
    served,
    write_mesh_file,
)
from tests.support.command.tenants import FakeTenants


@dataclass
class FakeDeployment(DeploymentServiceServicer):
    """Describe the service with the given replica."""

    replica: deployment.Replica

    async def DescribeReplica(self, request, context):
        return deployment.DescribeReplicaResponse(replica=self.replica)


def sound(service):
    """Return a healthy replica; session's worker runs in two processes."""
    schema = deployment.Schema(
        state=deployment.SCHEMA_STATE_CURRENT,
        known_migration_id="0002_more",
        applied_migration_id="0002_more",
    )
    workers = [deployment.Worker(name="session-worker", process_count=2)] if service == "session" else []
    return deployment.Replica(
        service=service,
        version="0.1.0",
        schema=schema,
        workers=workers,
        host_name=f"{service}-0",
        dependencies=[dependency("postgresql")],
    )


def dependency(name, fault=None, *, since=timedelta(minutes=3), is_up=None):
    """Return a dependency that is up, or down with the fault; with both, it was down before."""
    is_up = fault is None if is_up is None else is_up
    one = deployment.Dependency(
        name=name,
        state=deployment.DEPENDENCY_STATE_UP if is_up else deployment.DEPENDENCY_STATE_DOWN,
        last_fault=0 if fault is None else fault,
    )
    one.since_time.FromDatetime(utc_now() - since)
    return one


@asynccontextmanager
async def not_serving(service, keys, servicer):
    """Serve only the description of a replica that does not serve."""
    settings = ProcessSettings(log_level="error", jwks_file=keys / "jwks.json")
    with capture_logs():
        process = Process(service, settings, None, TokenVerifier(JwksFile(keys / "jwks.json")), NoOpTracer())
        server = build_server(process)
        add_DeploymentServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start_not_ready()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(None)


@dataclass
class Hospital(FakeMesh):
    """All five services.

    A test can remove or exchange them in `targets`, and change their `replicas`.
    """

    replicas: dict[str, deployment.Replica] = field(default_factory=dict)
    health: dict[str, Health] = field(default_factory=dict)

    async def findings(self, keys):
        write_mesh_file(self.data, keys, self.targets)
        result = await self.run("doctor", "--json")
        answer = json.loads(result.stdout)
        assert answer["ok"] == (result.exit_code == 0)
        return {finding.pop("name"): finding for finding in answer["findings"]}


@pytest.fixture
def skew():
    return timedelta()


@pytest.fixture
def audience():
    return AUDIENCE


@pytest.fixture
async def hospital(keys, tmp_path, skew, audience):
    sessions, tenants = FakeSessions(), FakeTenants()
    servers = {
        "session": add_sessions(sessions, tenants),
        "transcript": lambda server: add_TranscriptServiceServicer_to_server(
            TranscriptServiceServicer(), server
        ),
        "attachment-blob": lambda server: add_AttachmentBlobServiceServicer_to_server(
            AttachmentBlobServiceServicer(), server
        ),
        "model-router": lambda server: add_ModelRouterServiceServicer_to_server(
            ModelRouterServiceServicer(), server
        ),
        "hook": lambda server: add_HookServiceServicer_to_server(HookServiceServicer(), server),
    }
    async with AsyncExitStack() as stack:
        targets, replicas, healths = {}, {}, {name: Health() for name in servers}
        for name, add in servers.items():
            replicas[name] = sound(name)
            about = partial(add_DeploymentServiceServicer_to_server, FakeDeployment(replicas[name]))
            serving = served(
                name,
                keys,
                add,
                about,
                audience=audience,
                clock=lambda: utc_now() + skew,
                health=healths[name],
            )
            targets[name] = await stack.enter_async_context(serving)
        yield Hospital(tmp_path, sessions, tenants, FakeTranscript(), targets, replicas, healths)
