"""The policies that the router keeps for the time of an outage."""

import asyncio
from typing import Any

import pytest
from psycopg import OperationalError
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_model_router.domain.policy import TenantPolicy
from spawnmesh_model_router.operations.policy_cache import PolicyCache

from tests.support.waiting import eventually


class Reads:
    """A database whose reads wait until the test lets them go on."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()
        self.is_away = False

    async def execute(self, _tenant_id: str, _work: Any) -> TenantPolicy:
        self.begun += 1
        await self.go_on.wait()
        if self.is_away:
            raise OperationalError
        return TenantPolicy()


class NoBudgets:
    def invalidate(self) -> None:
        """Nothing is counted here."""


async def test_a_read_that_was_begun_before_the_tenant_went_is_not_remembered() -> None:
    reads: Any = Reads()
    budgets: Any = NoBudgets()
    policies = PolicyCache(reads, budgets)
    reading = asyncio.create_task(policies.get("acme"))
    await eventually(lambda: reads.begun == 1)
    policies.evict("acme")
    reads.go_on.set()
    await reading
    reads.is_away = True
    with pytest.raises(MeshError) as refused:
        await policies.get("acme")
    assert refused.value.reason is Reason.DEPENDENCY_UNAVAILABLE
