"""A server with every RPC of the contracts. A new RPC is attacked because it is in them."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from tests.support.security.attacked import Attacked, open_attacked


@pytest.fixture
async def attacked(keys: Path) -> AsyncIterator[Attacked]:
    """Serve every RPC in this process."""
    async with open_attacked(keys) as opened:
        yield opened


@pytest.fixture
async def channel(attacked: Attacked) -> AsyncIterator[grpc.aio.Channel]:
    """Connect without the client of the mesh."""
    async with grpc.aio.insecure_channel(attacked.target, options=[("grpc.enable_http_proxy", 0)]) as opened:
        yield opened
