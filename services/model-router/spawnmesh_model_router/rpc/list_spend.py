"""ListSpend: list what the tenant's model calls used and cost, by day, agent and model."""

from datetime import date

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1 import spend_pb2
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_core.clock import utc_now
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_model_router.domain.errors import unknown_tenant
from spawnmesh_model_router.domain.spend import Spend, SpendKey, SpendSpan, midnight
from spawnmesh_model_router.rpc.dependencies import Dependencies
from spawnmesh_model_router.rpc.messages import parse_time
from spawnmesh_model_router.store.spend import DaySpending, SpendGrouping, get_day_spending
from spawnmesh_model_router.store.spend import list_spend as read_spend

_DEFAULT_PAGE_SIZE = 100
_ALL = (
    spend_pb2.SPEND_DIMENSION_DAY,
    spend_pb2.SPEND_DIMENSION_AGENT,
    spend_pb2.SPEND_DIMENSION_MODEL,
)


async def list_spend(
    request: pb.ListSpendRequest, caller: Caller, deps: Dependencies
) -> pb.ListSpendResponse:
    """Return a page of the tenant's spending, and its budget of the current day.

    Raises INVALID_REQUEST for a span that ends before it starts or is too long, and for a page
    token of another list, and UNKNOWN_TENANT.
    """
    tenant_id = caller.tenant_id
    span = SpendSpan.of(parse_time(request, "start_time"), parse_time(request, "end_time"), utc_now())
    wanted = request.group_by or _ALL
    grouping = SpendGrouping(*(dimension in wanted for dimension in _ALL))
    last = position_of(request, (str, str, str), tenant_id)
    size = request.page_size or _DEFAULT_PAGE_SIZE
    async with deps.database.transaction(tenant_id) as connection:
        spending = await get_day_spending(connection, tenant_id)
        if spending is None:
            raise unknown_tenant()
        found = await read_spend(connection, tenant_id, span, grouping, _parse_position(last), size + 1)
    response = pb.ListSpendResponse(
        rows=[_render_row(key, spend, grouping) for key, spend in found[:size]],
        budget=_render_budget(spending) if spending.limit_micros else None,
        currency=deps.chain.config.currency,
    )
    if len(found) > size:
        end, _ = found[size - 1]
        position = [end.day.isoformat(), end.agent_id, end.model]
        response.next_page_token = page_token(position, request, tenant_id)
    return response


def _parse_position(last: tuple[str, str, str] | None) -> SpendKey | None:
    return SpendKey(date.fromisoformat(last[0]), last[1], last[2]) if last else None


def _render_row(key: SpendKey, spend: Spend, grouping: SpendGrouping) -> spend_pb2.SpendRow:
    usage = spend.charged.usage
    return spend_pb2.SpendRow(
        day_time=timestamp_of(midnight(key.day)) if grouping.by_day else None,
        agent_id=key.agent_id,
        model=key.model,
        call_count=spend.call_count,
        input_token_count=usage.input,
        output_token_count=usage.output,
        cache_read_token_count=usage.cache_read,
        cache_write_token_count=usage.cache_write,
        cost_micros=spend.charged.cost_micros,
    )


def _render_budget(spending: DaySpending) -> spend_pb2.DayBudget:
    return spend_pb2.DayBudget(
        limit_micros=spending.limit_micros,
        spent_micros=spending.spent_micros,
        reserved_micros=spending.reserved_micros,
        renew_time=timestamp_of(spending.renew_time),
    )
