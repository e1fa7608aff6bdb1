"""Watch whether the credentials of a provider can be read, as a dependency of this process.

The provider itself is not called: calls cost money, and `ListProviderHealth` has its cooldowns.
"""

from contextlib import AbstractContextManager

from spawnmesh_core.dependency_watch import DependencyDown, DependencyFault, DependencyWatch

from spawnmesh_model_router.operations.failover.availability import Availability


def watching_credentials(
    watch: DependencyWatch, provider: str, availability: Availability
) -> AbstractContextManager[None]:
    """Watch the provider as `credentials/<provider>`. It is up if one credential can be read."""

    async def check() -> None:
        if not availability.numbered_credentials(provider):
            raise DependencyDown(DependencyFault.CREDENTIALS_MISSING)

    return watch.watching(f"credentials/{provider}", check)
