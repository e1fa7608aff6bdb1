"""Run `spawnmesh transcript` as a client of a tenant."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.support.commands import Commands
from tests.support.transcript.fixtures import Session

Command = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
def command(commands: Commands) -> Command:
    """Run the command as a client of the session's tenant; returns exit code, output and errors."""

    async def run(session: Session, *arguments: str) -> tuple[int, str, str]:
        await session.enter_tenant()
        target = session.service.target
        options = ("--session-target", target, "--transcript-target", target, "transcript", *arguments)
        # The worker of the service carries the operations that the command starts.
        carrying = asyncio.create_task(session.service.jobs.run_jobs_forever())
        try:
            return await commands.run(*options, env={"SPAWNMESH_TOKEN": session.client_token(), "PATH": ""})
        finally:
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)

    return run
