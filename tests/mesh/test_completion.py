"""A shell completes ids and names with those that the mesh has."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from spawnmesh_client import Mesh, connect
from spawnmesh_client.resource_views import Agent, Plugin
from spawnmesh_devstack.stack import Stack

from tests.support.commands import Commands


@pytest.fixture
def tenant() -> str:
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture
async def mesh(stack: Stack, tenant: str) -> AsyncIterator[Mesh]:
    """Connect as a client of a tenant for this test alone."""
    async with connect(targets={"session": stack.targets["session"]}, token=stack.admin_token()) as operator:
        await operator.tenants.create(tenant)
    async with connect(targets=stack.targets, token=stack.client_token(tenant)) as client:
        yield client


async def completed(commands: Commands, data: Path, line: str) -> list[str]:
    """Return what bash offers at the end of the line."""
    words = line.split(" ")
    env = {
        **os.environ,
        "SPAWNMESH_DATA": str(data),
        "_SPAWNMESH_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    code, printed, errors = await commands.run(env=env)
    assert (code, errors) == (0, "")
    return printed.split()


async def test_ids_and_names_are_those_of_the_tenant(
    stack: Stack, mesh: Mesh, commands: Commands, tenant: str
) -> None:
    session = await mesh.spawn("Say hello.", mode="SESSION")
    await session.result(120)
    await mesh.agents.put(Agent("clerk"))
    await mesh.plugins.register(
        Plugin("watcher", "grpc://127.0.0.1:1", ("AGENT_END",)), allow_unreachable=True
    )
    lines = {
        "wait ses_": [session.session_id],
        "sessions delete ": [session.session_id],
        "spawn x --parent ses": [session.session_id],
        "agent show cl": ["clerk"],
        "spawn x --agent ": ["clerk", "default"],
        "hooks pause w": ["watcher"],
        "spawn x --model scripted/ag": ["scripted/agent"],
        "wait nothing": [],
    }
    for line, expected in lines.items():
        typed = f"spawnmesh --tenant {tenant} {line}"
        assert sorted(await completed(commands, stack.data_dir, typed)) == expected, typed


async def test_a_tenant_behind_the_command_counts(
    stack: Stack, mesh: Mesh, commands: Commands, tenant: str
) -> None:
    await mesh.agents.put(Agent("clerk"))
    line = f"spawnmesh agent show --tenant {tenant} cl"
    assert await completed(commands, stack.data_dir, line) == ["clerk"]


async def test_nothing_is_offered_without_a_mesh(commands: Commands, tmp_path: Path) -> None:
    assert await completed(commands, tmp_path, "spawnmesh wait ses_") == []
