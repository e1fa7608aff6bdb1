"""The usage of a session and its family, and the limits of their budgets."""

from collections.abc import Sequence
from datetime import UTC, timedelta

from spawnmesh.session.v1 import budget_pb2
from spawnmesh_client.budget_views import BudgetLimit
from spawnmesh_client.budgets import get_usage, update_budget
from spawnmesh_client.client import Mesh
from spawnmesh_client.view_of import word_of

from spawnmesh_console.domain.budget_limits import LimitAmounts
from spawnmesh_console.domain.budgets import FamilyUsage, UsedBudget

_LIMITS = budget_pb2.BudgetLimit.DESCRIPTOR
_DEFAULT_WAIT = timedelta(days=7)


async def family_usage(mesh: Mesh, session_id: str) -> FamilyUsage:
    """Return what the session and its descendants have used, and the budgets that it shares."""
    answer = await get_usage(mesh.wire.service("session"), session_id)
    usage = answer.family.usage
    return FamilyUsage(
        usage.cost_micros,
        usage.input_token_count + usage.output_token_count,
        answer.family.session_count,
        answer.is_family_partial,
        tuple(_budget(one) for one in answer.budgets),
    )


async def change_limits(
    mesh: Mesh, session_id: str, limits: LimitAmounts, paths: Sequence[str], etag: str
) -> None:
    """Change the limits of the budget of a session that the paths name.

    Refusals are those of UpdateBudget: ETAG_DIFFERS if they were changed since the etag was read.
    """
    budget = budget_pb2.Budget(
        max_token_count=limits.token_count,
        max_cost_micros=limits.cost_micros,
        max_model_call_count=limits.model_call_count,
    )
    budget.max_run_time.FromTimedelta(limits.run_time)
    await update_budget(mesh.wire.service("session"), session_id, budget, paths, etag=etag)


def _budget(one: budget_pb2.SessionBudget) -> UsedBudget:
    budget, usage = one.budget, one.usage
    return UsedBudget(
        one.session_id,
        LimitAmounts(
            budget.max_cost_micros,
            budget.max_token_count,
            budget.max_model_call_count,
            budget.max_run_time.ToTimedelta(),
        ),
        LimitAmounts(
            usage.cost_micros, usage.token_count, usage.model_call_count, usage.run_time.ToTimedelta()
        ),
        frozenset(word_of(BudgetLimit, limit, _LIMITS).value for limit in one.reached_limits),
        one.etag,
        budget.max_wait.ToTimedelta() if budget.HasField("max_wait") else _DEFAULT_WAIT,
        one.update_time.ToDatetime(UTC) if one.HasField("update_time") else None,
        one.updated_by,
    )
