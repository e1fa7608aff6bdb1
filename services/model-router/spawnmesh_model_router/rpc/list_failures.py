"""ListFailures: list the tenant's failed calls of providers by hour, model and reason."""

from datetime import datetime

from spawnmesh.model_router.v1 import failures_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_core.clock import utc_now
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_model_router.domain.errors import unknown_tenant
from spawnmesh_model_router.domain.failures import FailureCounts, FailureKey, HourSpan
from spawnmesh_model_router.domain.reasons import parse_reason
from spawnmesh_model_router.rpc.dependencies import Dependencies
from spawnmesh_model_router.rpc.messages import parse_time, render_reason
from spawnmesh_model_router.store.failures import FailureGrouping
from spawnmesh_model_router.store.failures import list_failures as read_failures
from spawnmesh_model_router.store.policies import get_policy

_DEFAULT_PAGE_SIZE = 100
_ALL = (
    failures_pb2.FAILURE_DIMENSION_HOUR,
    failures_pb2.FAILURE_DIMENSION_MODEL,
    failures_pb2.FAILURE_DIMENSION_REASON,
)


async def list_failures(
    request: pb.ListFailuresRequest, caller: Caller, deps: Dependencies
) -> pb.ListFailuresResponse:
    """Return a page of the tenant's failed calls.

    Raises INVALID_REQUEST for a span that ends before it starts or is too long, and for a page
    token of another list, and UNKNOWN_TENANT.
    """
    tenant_id = caller.tenant_id
    span = HourSpan.of(parse_time(request, "start_time"), parse_time(request, "end_time"), utc_now())
    wanted = request.group_by or _ALL
    grouping = FailureGrouping(*(dimension in wanted for dimension in _ALL))
    last = position_of(request, (datetime, str, str), tenant_id)
    after, size = FailureKey(*last) if last else None, request.page_size or _DEFAULT_PAGE_SIZE
    async with deps.database.transaction(tenant_id) as connection:
        if await get_policy(connection, tenant_id) is None:
            raise unknown_tenant()
        found = await read_failures(connection, tenant_id, span, grouping, after, size + 1)
    response = pb.ListFailuresResponse(
        rows=[_render_row(key, counts, grouping) for key, counts in found[:size]]
    )
    if len(found) > size:
        end, _ = found[size - 1]
        response.next_page_token = page_token((end.hour, end.model, end.reason), request, tenant_id)
    return response


def _render_row(key: FailureKey, counts: FailureCounts, grouping: FailureGrouping) -> failures_pb2.FailureRow:
    return failures_pb2.FailureRow(
        hour_time=timestamp_of(key.hour) if grouping.by_hour else None,
        model=key.model,
        reason=render_reason(parse_reason(key.reason) if grouping.by_reason else None),
        failure_count=counts.failures,
        failover_count=counts.failovers,
        end_count=counts.ends,
    )
