"""A worker whose models work with tools, on a real mesh."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from spawnmesh_client import Mesh
from spawnmesh_client.worker import AgentFunction, Worker
from spawnmesh_devstack.scripted_agents import CALLER
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.tokens import TokenMinter

SERVICES = ("session", "transcript", "attachment-blob", "model-router", "hook")


def runner_token(stack: Stack, tenant: str) -> str:
    """Return the token of a worker for all agents of the tenant."""
    minter = TokenMinter("client", stack.keys / "client.pem")
    return minter.runner_token("ours", 3600, tenants=[tenant])


@asynccontextmanager
async def working(runner: Mesh, function: AgentFunction) -> AsyncIterator[None]:
    """Answer the runs of the agent during the block. Behind it, the worker hands its runs back."""
    worker = Worker(runner)
    worker.agent(CALLER)(function)
    async with asyncio.timeout(300), asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        try:
            yield
        finally:
            worker.stop()
