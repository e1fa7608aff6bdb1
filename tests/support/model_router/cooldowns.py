"""The cooldowns that a router reports."""

from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb

from tests.support.model_router.fixtures import Router


async def list_cooldowns(router: Router) -> list[tuple[int, str]]:
    """Return the (scope, reason) of each cooldown at the test's providers."""
    health = await router.call("ListProviderHealth", pb.ListProviderHealthRequest())
    return [
        (cooldown.scope, generation_pb2.FailoverReason.Name(cooldown.reason).removeprefix("FAILOVER_REASON_"))
        for provider in health.providers
        for cooldown in provider.cooldowns
    ]
