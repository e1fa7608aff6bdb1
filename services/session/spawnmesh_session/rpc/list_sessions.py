"""ListSessions.

Returns the tenant's sessions that the filter accepts, in the order that was requested.
"""

from datetime import datetime

from spawnmesh.session.v1.session_pb2 import SESSION_VIEW_FULL
from spawnmesh.session.v1.session_service_pb2 import ListSessionsRequest, ListSessionsResponse
from spawnmesh_core.errors import invalid
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.filters import parse_filter
from spawnmesh_session.domain.session_filters import filter_of
from spawnmesh_session.domain.sessions import SessionOrder
from spawnmesh_session.operations.callers import family_root_of
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import DEFAULT_PAGE_SIZE, render_session
from spawnmesh_session.store import session_lists
from spawnmesh_session.store.session_lists import ListPlace, SessionQuery


async def list_sessions(
    request: ListSessionsRequest, caller: Caller, deps: Dependencies
) -> ListSessionsResponse:
    """Return a page of the sessions that the caller may access and that the filter accepts."""
    query = _parse_query(request, caller)
    async with deps.database.transaction(caller.tenant_id) as connection:
        if request.request_id:
            listed = await session_lists.list_requested(
                connection,
                caller.tenant_id,
                request_id=request.request_id,
                spawner=caller.session_id,
                include_archived=query.include_archived,
                is_full=query.is_full,
            )
        else:
            listed = await session_lists.list_sessions(
                connection, caller.tenant_id, query, page_size=request.page_size or DEFAULT_PAGE_SIZE
            )
    return ListSessionsResponse(
        sessions=map(render_session, listed.sessions),
        next_page_token=_render_token(listed.end, request, caller),
    )


def _parse_query(request: ListSessionsRequest, caller: Caller) -> SessionQuery:
    """Return the query. Raise INVALID_REQUEST for a filter, an order or a token that is none."""
    if request.request_id:
        for field in ("filter", "order_by"):
            if getattr(request, field):
                raise invalid(field, "must be empty, because a request_id names one session")
    wanted, order = filter_of(parse_filter(request.filter)), _parse_order(request.order_by)
    if order is SessionOrder.LAST_ENDED and not wanted.is_ended:
        raise invalid(
            "order_by", f"{order.value!r} needs a filter that compares end_time, for example by `end_time:*`"
        )
    return SessionQuery(
        filter=wanted,
        order=order,
        after=_parse_token(request, order, caller),
        family_root=family_root_of(caller),
        include_archived=request.include_archived,
        is_full=request.view == SESSION_VIEW_FULL,
    )


def _parse_order(order_by: str) -> SessionOrder:
    text = " ".join(order_by.split()) or SessionOrder.NEWEST
    try:
        return SessionOrder(text)
    except ValueError:
        raise invalid("order_by", f"is none of {', '.join(map(repr, map(str, SessionOrder)))}") from None


def _parse_token(request: ListSessionsRequest, order: SessionOrder, caller: Caller) -> ListPlace | None:
    owner = (caller.tenant_id, caller.session_id)
    if order is SessionOrder.LAST_ENDED:
        ended = position_of(request, (datetime, str), *owner)
        return ListPlace(session_id=ended[1], end_time=ended[0]) if ended else None
    position = position_of(request, (str,), *owner)
    return ListPlace(position[0]) if position else None


def _render_token(end: ListPlace | None, request: ListSessionsRequest, caller: Caller) -> str:
    if end is None:
        return ""
    position = (end.session_id,) if end.end_time is None else (end.end_time, end.session_id)
    return page_token(position, request, caller.tenant_id, caller.session_id)
