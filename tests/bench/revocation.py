"""The time from the answer of RevokeToken until every service refuses the token."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_client.revocations import revoke_token
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.bench.harness import Bench, Metric, Samples
from tests.support.session.revoking import id_of

TENANT = "bench-revocation"
ROUNDS = 50
WARM_UP = 3
BOUND_MS = 1000.0
_SESSION_ID = "ses_" + "0" * 26

# A cheap call of each service, which a token that is not revoked may make.
_CALLS: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
    "session": (
        lambda channel: SessionServiceStub(channel).ListSessions,
        session_pb.ListSessionsRequest(page_size=1),
    ),
    "attachment-blob": (
        lambda channel: AttachmentBlobServiceStub(channel).GetUpload,
        blob_pb.GetUploadRequest(upload_id="upl_" + "0" * 26),
    ),
    "transcript": (
        lambda channel: TranscriptServiceStub(channel).ListEntries,
        transcript_pb.ListEntriesRequest(session_id=_SESSION_ID),
    ),
    "model-router": (
        lambda channel: ModelRouterServiceStub(channel).ListModels,
        router_pb.ListModelsRequest(),
    ),
    "hook": (lambda channel: HookServiceStub(channel).ListPlugins, hook_pb.ListPluginsRequest()),
}


async def run(bench: Bench) -> None:
    """Revoke one token after the other, and call every service with it until it is refused."""
    stack = await bench.stack()
    targets = {name.replace("-", "_"): target for name, target in stack.targets.items()}
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(TENANT)
    seconds: dict[str, list[float]] = {name: [] for name in _CALLS}
    async with connect_wire(session=targets["session"], token=stack.client_token(TENANT)) as client:
        for number in range(WARM_UP + ROUNDS):
            token = stack.client_token(TENANT)
            async with connect_wire(**targets, token=token) as holder:
                await asyncio.gather(*(_is_refused(holder, name) for name in _CALLS))
                await revoke_token(client, id_of(token))
                began = perf_counter()
                times = await asyncio.gather(*(_until_refused(holder, name, began) for name in _CALLS))
            if number >= WARM_UP:
                for name, took in zip(_CALLS, times, strict=True):
                    seconds[name].append(took)
    for name, took in seconds.items():
        samples = Samples(took)
        bench.record(
            Metric(
                f"revocation.{name}.p99",
                samples.percentile(99) * 1e3,
                "ms",
                None,
                None,
                len(took),
                samples.p95 * 1e3,
                BOUND_MS,
            )
        )


async def _until_refused(holder: WireMesh, service: str, began: float) -> float:
    while not await _is_refused(holder, service):
        pass
    return perf_counter() - began


async def _is_refused(holder: WireMesh, service: str) -> bool:
    method, request = _CALLS[service]
    peer = holder.service(service)
    call: Awaitable[Any] = peer.unary(method(peer.channel), request)
    try:
        await call
    except MeshError as error:
        if error.reason is Reason.TOKEN_REVOKED:
            return True
        if error.reason is not Reason.NOT_FOUND:
            raise
    return False
