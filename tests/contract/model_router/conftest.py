"""Fixtures of the model router's contract tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_model_router.jobs import store_usage

from tests.support.model_router.fixtures import World, open_world


@pytest.fixture
async def world(databases: dict[str, ServiceDsn], keys: Path, tmp_path: Path) -> AsyncIterator[World]:
    """Yield a migrated database and a loopback provider. A test opens its routers itself."""
    async with open_world(databases["model_router"], keys, tmp_path) as opened:
        yield opened


@pytest.fixture
def quick_spend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let routers in the process of the test store spending and failures at once, and not a second later."""
    monkeypatch.setattr(store_usage, "_INTERVAL_SECONDS", 0.02)
