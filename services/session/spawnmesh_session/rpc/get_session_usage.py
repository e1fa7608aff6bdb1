"""GetSessionUsage. Returns what a session and its family have used, and the budgets they share."""

from spawnmesh.session.v1.budget_pb2 import GetSessionUsageRequest, GetSessionUsageResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.sessions import Session
from spawnmesh_session.operations.callers import family_root_of
from spawnmesh_session.rpc.budget_messages import render_budget, render_total
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.store import budgets, sessions


async def get_session_usage(
    request: GetSessionUsageRequest, caller: Caller, deps: Dependencies
) -> GetSessionUsageResponse:
    """Return the usage of ended runs, and the budgets that the caller may see."""
    tenant_id, root = caller.tenant_id, family_root_of(caller)
    async with deps.database.transaction(tenant_id) as connection:
        session = await sessions.read_session(connection, tenant_id, request.session_id, family_root=root)
        family = await budgets.list_family(connection, tenant_id, session.session_id)
        counted = family[: budgets.MAX_FAMILY]
        own = await budgets.sum_usage(connection, tenant_id, [session.session_id])
        total = await budgets.sum_usage(connection, tenant_id, counted)
        shared = await budgets.list_budgets(connection, tenant_id, _visible(session, root))
    return GetSessionUsageResponse(
        session=render_total(own),
        family=render_total(total),
        is_family_partial=len(family) > len(counted),
        budgets=map(render_budget, shared),
    )


def _visible(session: Session, root: str) -> tuple[str, ...]:
    """Return the sessions of budgets that the caller may see: with a root, none above it."""
    chain = session.budget_session_ids
    if not root:
        return chain
    above = session.ancestor_ids[: session.ancestor_ids.index(root)] if root in session.ancestor_ids else ()
    hidden = {*above} if root != session.session_id else {*session.ancestor_ids}
    return tuple(one for one in chain if one not in hidden)
