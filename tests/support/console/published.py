"""Runs of a test's own that publish files."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

from spawnmesh.attachment_blob.v1.attachment_pb2 import InlineAttachment
from spawnmesh.errors.v1.reason_pb2 import REASON_RUNNER_ERROR
from spawnmesh.session.v1.output_pb2 import OutputSet, PublishFilesRequest
from spawnmesh.session.v1.run_service_pb2 import ClaimedRun, ClaimRunsRequest, FailRunRequest
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh.session.v1.session_pb2 import RUNTIME_EXTERNAL
from spawnmesh_client.client import connect
from spawnmesh_client.session import Session
from spawnmesh_client.wire import WireMesh
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.console.visitors import ConsoleTenant
from tests.support.waiting import eventually


@dataclass(frozen=True)
class HeldRun:
    """A run that the test has claimed, and the mesh as this run sees it."""

    claimed: ClaimedRun
    mesh: WireMesh

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.claimed.run.run_id

    async def publish(self, *files: InlineAttachment) -> OutputSet:
        """Publish the files as one set."""
        request = PublishFilesRequest(epoch=self.claimed.run.epoch, request_id=uuid4().hex, files=files)
        peer = self.mesh.service("session")
        stub = RunServiceStub(peer.channel)
        return (await peer.unary(stub.PublishFiles, request, timeout_seconds=60)).output_set


def file_of(name: str, data: bytes = b"published", mime_type: str = "") -> InlineAttachment:
    """Return a file to publish."""
    return InlineAttachment(name=name, data=data, mime_type=mime_type)


@asynccontextmanager
async def held_run(tenant: ConsoleTenant, session: Session) -> AsyncIterator[HeldRun]:
    """Hold the newest run of a session with the runtime EXTERNAL for the block, then let it fail."""
    stack = tenant.console.stack
    minter = TokenMinter("runner", stack.keys / "runner.pem")
    claimable = minter.runner_token(tenants=[tenant.tenant_id])
    async with connect(targets=stack.targets, token=claimable) as runner:
        claimed = await eventually(lambda: _claimed(runner.wire, session), within_seconds=60)
    async with connect(targets=stack.targets, token=claimed.run_token) as mesh:
        yield HeldRun(claimed, mesh.wire)
        request = FailRunRequest(epoch=claimed.run.epoch, reason=REASON_RUNNER_ERROR, message="It is over.")
        peer = mesh.wire.service("session")
        await peer.unary(RunServiceStub(peer.channel).FailRun, request)


async def _claimed(runner: WireMesh, session: Session) -> ClaimedRun | None:
    """Return the session's run. A run of another session of the test comes back when its lease ends."""
    peer = runner.service("session")
    request = ClaimRunsRequest(runner_id="test", max_run_count=1, runtimes=[RUNTIME_EXTERNAL])
    runs = (await peer.unary(RunServiceStub(peer.channel).ClaimRuns, request)).runs
    return next((one for one in runs if one.session.session_id == session.session_id), None)


async def publishing_session(
    tenant: ConsoleTenant, *sets: Sequence[InlineAttachment], **more: str
) -> tuple[Session, list[OutputSet]]:
    """Spawn a session that stays open, let its run publish these sets, and return both."""
    spawned = await tenant.mesh.spawn("Publish.", runtime="EXTERNAL", mode="SESSION", **more)  # type: ignore[arg-type]
    async with held_run(tenant, spawned) as run:
        published = [await run.publish(*files) for files in sets]
    return await spawned.refresh(), published
