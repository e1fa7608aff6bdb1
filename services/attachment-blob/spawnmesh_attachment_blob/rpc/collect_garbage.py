"""CollectGarbage.

Starts an operation that compares a tenant's bucket with its rows in both directions, and repairs
what interrupted work left, once it is older than the grace period. `jobs/operation_steps.py` takes
its steps.
"""

from functools import partial

from google.longrunning.operations_pb2 import Operation
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_postgres.long_running.operation import NewOperation
from spawnmesh_postgres.long_running.operations import Operations
from spawnmesh_runtime.caller import Caller
from spawnmesh_runtime.telemetry import current_traceparent

from spawnmesh_attachment_blob.operations.operation_types import COLLECT
from spawnmesh_attachment_blob.rpc.dependencies import Dependencies


async def collect_garbage(
    request: pb.CollectGarbageRequest, caller: Caller, deps: Dependencies, operations: Operations
) -> Operation:
    """Start the operation on the tenant that the operator names, or return the one that the same
    call has started.

    Raises NOT_FOUND, REQUEST_ID_REUSED and OPERATION_COUNT_EXCEEDED.
    """
    tenant_id = request.tenant_id
    new = NewOperation(COLLECT, request.request_id, request, caller.subject, current_traceparent())
    check = partial(deps.collector.require_tenant, tenant_id)
    return await operations.start(tenant_id, new, check)
