"""A provider is up as a dependency while one of its credentials can be read."""

from typing import Any

from spawnmesh_core.dependency_watch import DependencyFault, DependencyWatch
from spawnmesh_model_router.operations.credential_watch import watching_credentials


class Readable:
    """Credentials that tests make readable, by number."""

    def __init__(self) -> None:
        self.numbers: dict[int, str] = {}

    def numbered_credentials(self, provider: str) -> dict[int, str]:
        assert provider == "openai"
        return self.numbers


async def test_a_provider_without_a_readable_credential_is_down() -> None:
    watch, readable = DependencyWatch(), Readable()
    availability: Any = readable
    with watching_credentials(watch, "openai", availability):
        found = []
        for numbers in ({1: "a"}, {}, {2: "b"}):
            readable.numbers = numbers
            (status,) = await watch.look()
            found.append((status.name, status.is_up, status.last_fault))
    missing = DependencyFault.CREDENTIALS_MISSING
    assert found == [
        ("credentials/openai", True, None),
        ("credentials/openai", False, missing),
        ("credentials/openai", True, missing),
    ]
