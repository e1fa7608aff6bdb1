"""Start and stop the background jobs of the service."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from spawnmesh_postgres.listener import Subscription

from spawnmesh_model_router.jobs.refresh_policies import refresh_policies
from spawnmesh_model_router.jobs.store_usage import store_usage
from spawnmesh_model_router.jobs.sync_cooldowns import sync_cooldowns
from spawnmesh_model_router.operations.cooldown_cache import CooldownCache
from spawnmesh_model_router.operations.policy_cache import PolicyCache
from spawnmesh_model_router.operations.usage_log import UsageLog

_LAST_SYNC_SECONDS = 2.0

log = structlog.get_logger()


@asynccontextmanager
async def run_jobs(
    cooldowns: CooldownCache,
    cooldown_changes: Subscription,
    policies: PolicyCache,
    policy_changes: Subscription,
    usage: UsageLog,
) -> AsyncIterator[None]:
    """Run the jobs until the block ends.

    The cooldowns are read before the block begins. At its end, unsaved cooldowns are saved if that
    takes at most 2 s, and pending reads and charges of tenants finish. Then the usage that is
    left is stored, if that takes at most 2 s. A job that fails ends the block.
    """
    await cooldowns.sync()
    try:
        async with asyncio.TaskGroup() as group:
            jobs = [
                group.create_task(sync_cooldowns(cooldowns, cooldown_changes), name="sync cooldowns"),
                group.create_task(refresh_policies(policies, policy_changes), name="refresh policies"),
                group.create_task(store_usage(usage), name="store usage"),
            ]
            yield
            for job in jobs:
                job.cancel()
    finally:
        try:
            async with asyncio.timeout(_LAST_SYNC_SECONDS):
                await cooldowns.sync()
        except TimeoutError:
            log.warning("cooldowns_not_saved")
        await policies.finish()
        await usage.finish()
