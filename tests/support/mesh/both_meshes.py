"""A real mesh beside the mesh in memory, and the records of programs that run on both."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any
from uuid import uuid4

import pytest
from spawnmesh_client import Mesh, MeshError, connect
from spawnmesh_devstack.stack import Stack

Record = list[Any]


@pytest.fixture
def tenant() -> str:
    """Return the name of the tenant of the test."""
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture
async def real(stack: Stack, tenant: str) -> AsyncIterator[Mesh]:
    """Connect to the tenant, which is created."""
    async with connect(targets={"session": stack.targets["session"]}, token=stack.admin_token()) as operator:
        await operator.tenants.create(tenant)
    names = ("session", "transcript", "attachment-blob")
    targets = {name: stack.targets[name] for name in names}
    async with connect(targets=targets, token=stack.client_token(tenant)) as mesh:
        yield mesh


def said(text: str) -> str:
    """Answer as the scripted model of the real mesh does."""
    return f"I am the scripted model: I follow rules and understand nothing. You said: {text}"


async def refused(call: Awaitable[Any]) -> tuple[str, Any, list[str]]:
    """Return class, reason and the names of facts and fields of the refusal of the call."""
    with pytest.raises(MeshError) as error:
        await call
    fields = [one.field for one in error.value.violations]
    return type(error.value).__name__, error.value.reason, sorted(error.value.facts) + fields
