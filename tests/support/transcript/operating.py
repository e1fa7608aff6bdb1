"""Operations of the transcript service: start them, carry them in the test process, and read them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from google.longrunning.operations_pb2 import Operation
from google.protobuf.duration_pb2 import Duration
from spawnmesh.operations.v1 import operation_service_pb2 as pb
from spawnmesh.operations.v1.operation_service_pb2 import OperationMetadata
from spawnmesh.operations.v1.operation_service_pb2_grpc import OperationServiceStub
from spawnmesh_calls.wire_errors import error_of_status
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_postgres.long_running.store import JOB_KIND
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.process import start_process
from spawnmesh_transcript.app import open_worker
from spawnmesh_transcript.settings import TranscriptSettings

if TYPE_CHECKING:
    from tests.support.transcript.fixtures import Service, Session

_WAIT = Duration(seconds=60)


@asynccontextmanager
async def idle_worker(settings: TranscriptSettings) -> AsyncIterator[JobWorker]:
    """Open a worker with these settings that does nothing by itself."""
    async with (
        start_process("transcript", settings) as process,
        open_worker(process, settings, asyncio.Event()) as worker,
    ):
        yield worker.jobs


async def call_operations(session: "Session", rpc: str, request: Any, *, token: str = "") -> Any:
    """Call an RPC of OperationService."""
    peer = session.service.peer
    with use_token(token or session.client_token()):
        return await peer.unary(getattr(OperationServiceStub(peer.channel), rpc), request, timeout_seconds=60)


async def carry(service: "Service") -> int:
    """Do what is due of all operations. Return the number of attempts."""
    return await service.jobs.run_due(JOB_KIND)


async def result_of(session: "Session", started: Operation, kind: type[Any]) -> Any:
    """Carry the operation until it is done. Return its response, or raise its error."""
    while True:
        await carry(session.service)
        request = pb.WaitOperationRequest(name=started.name, timeout=_WAIT)
        operation: Operation = await call_operations(session, "WaitOperation", request)
        if operation.done:
            return response_of(operation, kind)


def response_of(operation: Operation, kind: type[Any]) -> Any:
    """Return the response of an operation that is done, or raise its error."""
    if operation.HasField("error"):
        raise error_of_status(operation.error)
    response = kind()
    assert operation.response.Unpack(response)
    return response


def metadata_of(operation: Operation) -> OperationMetadata:
    metadata = OperationMetadata()
    assert operation.metadata.Unpack(metadata)
    return metadata
