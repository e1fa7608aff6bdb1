"""Drop cached policies when a policy changes."""

from spawnmesh_postgres.listener import Subscription

from spawnmesh_model_router.operations.policy_cache import PolicyCache

_INTERVAL_SECONDS = 300.0  # Bounds how long a lost notification can matter.


async def refresh_policies(policies: PolicyCache, changes: Subscription) -> None:
    """Invalidate the cache whenever a policy changes, here or in another replica, until
    cancelled.
    """
    while True:
        await changes.wait(_INTERVAL_SECONDS)
        policies.invalidate()
