"""The dependencies of the RPCs."""

from dataclasses import dataclass

from spawnmesh_postgres.database import Database

from spawnmesh_model_router.operations.budget_counter import BudgetCounter
from spawnmesh_model_router.operations.cooldown_cache import CooldownCache
from spawnmesh_model_router.operations.failover.dependencies import ChainDependencies
from spawnmesh_model_router.operations.policy_cache import PolicyCache
from spawnmesh_model_router.operations.run_budgets import RunBudgets
from spawnmesh_model_router.operations.usage_log import UsageLog


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Shared by all RPCs."""

    database: Database
    policies: PolicyCache
    budgets: BudgetCounter
    run_budgets: RunBudgets
    usage: UsageLog
    cooldowns: CooldownCache
    chain: ChainDependencies
