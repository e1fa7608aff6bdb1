"""UpdateBudget. Changes the limits of the budget of a session."""

from spawnmesh.session.v1.budget_pb2 import UpdateBudgetRequest, UpdateBudgetResponse
from spawnmesh_calls.field_masks import apply_changes, changed_paths
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.budgets import FamilyLimits
from spawnmesh_session.domain.text import without_nul
from spawnmesh_session.rpc.budget_messages import parse_limits, render_budget, render_limits
from spawnmesh_session.rpc.dependencies import Dependencies


async def update_budget(
    request: UpdateBudgetRequest, caller: Caller, deps: Dependencies
) -> UpdateBudgetResponse:
    """Change the masked limits. The runs that wait for them go on if there is room."""
    paths = changed_paths(request.update_mask, request.budget, ())

    def changed(limits: FamilyLimits) -> FamilyLimits:
        wanted = render_limits(limits)
        apply_changes(paths, request.budget, wanted)
        return parse_limits(wanted)

    budget = await deps.budgets.change(
        caller.tenant_id,
        request.session_id,
        changed,
        etag=request.etag,
        updated_by=without_nul(caller.subject),
    )
    return UpdateBudgetResponse(budget=render_budget(budget))
