"""The large requests that a process works on at a time have a bound, and tenants take turns."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf import wrappers_pb2
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2_grpc as blob_grpc
from spawnmesh.attachment_blob.v1.attachment_pb2 import InlineAttachment
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import run_service_pb2_grpc as run_grpc
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import caller_tenant_id
from spawnmesh_runtime.impersonation import impersonate, use_token
from spawnmesh_runtime.server import build_server

from tests.support.waiting import eventually

MIB = 1024 * 1024
LARGE = 700 * 1024
"""Two of them are more than half of the capacity of two MiB, which is all that a tenant gets."""


class Sets(blob_grpc.AttachmentBlobServiceServicer):
    """A service that works on its requests until the test lets it go on."""

    def __init__(self) -> None:
        self.working: list[str] = []
        self.go_on = asyncio.Event()

    async def StageSet(self, request: Any, context: Any) -> blob_pb.StageSetResponse:
        self.working.append(caller_tenant_id())
        try:
            await self.go_on.wait()
        finally:
            self.working.remove(caller_tenant_id())
        return blob_pb.StageSetResponse()


class Runs(run_grpc.RunServiceServicer):
    """A service whose claims wait until the test lets them go on."""

    def __init__(self) -> None:
        self.claiming: list[str] = []
        self.go_on = asyncio.Event()

    async def ClaimRuns(self, request: Any, context: Any) -> run_pb.ClaimRunsResponse:
        self.claiming.append(request.runner_id)
        await self.go_on.wait()
        return run_pb.ClaimRunsResponse()


@pytest.fixture
async def served(process_named: Any, peer_of: Any) -> AsyncIterator[tuple[Sets, Runs, Any]]:
    server = build_server(process_named("transcript", request_memory_bytes=2 * MIB))
    sets, runs = Sets(), Runs()
    blob_grpc.add_AttachmentBlobServiceServicer_to_server(sets, server)
    run_grpc.add_RunServiceServicer_to_server(runs, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with peer_of(f"127.0.0.1:{port}", caller="session") as peer:
        yield sets, runs, peer
    await server.stop(None)


@pytest.fixture
def sets(served: tuple[Sets, Runs, Any]) -> tuple[Sets, Any]:
    return served[0], served[2]


async def stage(peer: Any, tenant_id: str, size: int) -> None:
    stub = blob_grpc.AttachmentBlobServiceStub(peer.channel)
    sent = blob_pb.StageSetRequest(
        set_id="att_" + "0" * 26,
        session_id="ses_" + "0" * 26,
        items=[InlineAttachment(name="a", content="x" * size)],
    )
    with impersonate(tenant_id):
        await peer.unary(stub.StageSet, sent, timeout_seconds=60)


async def test_a_tenant_has_half_of_the_bytes_and_another_tenant_and_small_requests_pass(sets: Any) -> None:
    servicer, peer = sets
    first = asyncio.create_task(stage(peer, "acme", LARGE))
    await eventually(lambda: servicer.working == ["acme"])
    second = asyncio.create_task(stage(peer, "acme", LARGE))
    other = asyncio.create_task(stage(peer, "beta", LARGE))
    await eventually(lambda: sorted(servicer.working) == ["acme", "beta"])
    small = asyncio.create_task(stage(peer, "acme", 1024))
    await eventually(lambda: sorted(servicer.working) == ["acme", "acme", "beta"])
    assert not second.done()
    servicer.go_on.set()
    await asyncio.gather(first, second, other, small)


async def test_a_runner_of_tenants_takes_their_share_and_not_that_of_the_mesh(served: Any, keys: Any) -> None:
    _, runs, peer = served
    minter = keys.minter("runner")

    async def claim(runner_id: str, token: str) -> None:
        request = run_pb.ClaimRunsRequest(runner_id=runner_id, max_run_count=1)
        request.MergeFromString(unknown_field(LARGE))
        with use_token(token):
            await peer.unary(run_grpc.RunServiceStub(peer.channel).ClaimRuns, request, timeout_seconds=30)

    harness = minter.runner_token(tenants=["acme"])
    first = asyncio.create_task(claim("first", harness))
    await eventually(lambda: runs.claiming == ["first"])
    second = asyncio.create_task(claim("second", harness))
    of_the_mesh = asyncio.create_task(claim("of the mesh", minter.runner_token()))
    await eventually(lambda: runs.claiming == ["first", "of the mesh"])
    runs.go_on.set()
    await asyncio.gather(first, second, of_the_mesh)


def unknown_field(size: int) -> bytes:
    """Return a field that no contract has, with so many bytes."""
    message = wrappers_pb2.StringValue(value="x" * size).SerializeToString()
    return b"\xfa\x7f" + message[1:]  # Field 2047 in the place of field 1.


async def test_what_waits_has_a_bound_as_well(sets: Any) -> None:
    servicer, peer = sets
    first = asyncio.create_task(stage(peer, "acme", LARGE))
    await eventually(lambda: servicer.working == ["acme"])
    others = [asyncio.create_task(stage(peer, "acme", LARGE)) for _ in range(2)]
    # One of the two waits. The other one would be more than a tenant may have waiting.
    await eventually(lambda: any(task.done() for task in others))
    (refused,) = (task for task in others if task.done())
    error = refused.exception()
    assert isinstance(error, MeshError)
    assert error.reason is Reason.POOL_EXHAUSTED
    assert error.facts["pool"] == "request bytes"
    servicer.go_on.set()
    await asyncio.gather(first, *(task for task in others if task is not refused))


async def test_a_call_that_ends_makes_room_whatever_its_outcome(sets: Any) -> None:
    servicer, peer = sets
    for _ in range(3):
        abandoned = asyncio.create_task(stage(peer, "acme", LARGE))
        await eventually(lambda: servicer.working == ["acme"])
        abandoned.cancel()
        await asyncio.gather(abandoned, return_exceptions=True)
        await eventually(lambda: servicer.working == [])
    servicer.go_on.set()
    await stage(peer, "acme", LARGE)
