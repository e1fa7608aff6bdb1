"""The key of a service's page tokens, for tests that make tokens as the service does."""

from contextlib import AbstractContextManager
from pathlib import Path

from spawnmesh_core.page_tokens import page_key
from spawnmesh_runtime.interceptors.pages import page_key_of
from spawnmesh_runtime.tokens import TokenMinter


def page_key_from(keys: Path, service: str) -> AbstractContextManager[None]:
    """Make page tokens in the block as the service does that has its signing key in this folder."""
    return page_key(page_key_of(TokenMinter(service, keys / f"{service}.pem")))
