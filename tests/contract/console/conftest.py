"""One mesh and one console for all tests of this directory. Each test has a tenant of its own."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import pytest
from spawnmesh_client.client import Mesh
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.stack import Stack, open_stack
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.furnished import Furnished, furnish
from tests.support.console.receivers import Receivers, open_receivers
from tests.support.console.running_console import RunningConsole, start_console
from tests.support.console.visitors import ConsoleTenant, SignedIn, open_tenant, sign_in, stranger
from tests.support.patient_callers import patient_callers


def _quiet(_line: str) -> None:
    """Drop a line of progress."""


@pytest.fixture(scope="package")
async def stack(fork_server: ForkServer) -> AsyncIterator[Stack]:
    """Start every process of the mesh, with the scripted model. A test stops none of them."""
    with tempfile.TemporaryDirectory(prefix="spawnmesh-console-") as folder:
        async with open_stack(Path(folder) / "data", _quiet, execute=fork_server.execute) as mesh:
            with patient_callers():
                yield mesh


@pytest.fixture(scope="package")
async def console(stack: Stack) -> RunningConsole:
    """Start the console."""
    return await start_console(stack, stack.data_dir / "console")


@pytest.fixture(scope="package")
async def receivers() -> AsyncIterator[Receivers]:
    """Serve addresses for webhooks."""
    async with open_receivers() as opened:
        yield opened


@pytest.fixture
async def tenant(console: RunningConsole) -> AsyncIterator[ConsoleTenant]:
    """Create a tenant."""
    async with open_tenant(console) as opened:
        yield opened


@pytest.fixture(scope="package")
async def furnished(console: RunningConsole) -> AsyncIterator[Furnished]:
    """Fill a tenant that many tests look at, and none changes."""
    async with open_tenant(console) as opened:
        yield await furnish(opened)


@pytest.fixture
def mesh(tenant: ConsoleTenant) -> Mesh:
    """Return the mesh as an operator of the tenant sees it."""
    return tenant.mesh


@pytest.fixture
async def visitors() -> AsyncIterator[AsyncExitStack]:
    """Close the browsers of a test at its end."""
    async with AsyncExitStack() as exits:
        yield exits


@pytest.fixture
async def visitor(console: RunningConsole, visitors: AsyncExitStack) -> httpx2.AsyncClient:
    """Return the browser of a person who has not signed in."""
    return await visitors.enter_async_context(stranger(console))


@pytest.fixture
def signed_in(console: RunningConsole, tenant: ConsoleTenant, visitors: AsyncExitStack) -> SignedIn:
    """Sign a person in: `await signed_in()` is an operator of the tenant, `await
    signed_in(ClientRole.READER)` has another role, and `await signed_in(token)` has that token.
    """

    async def browser(who: str | ClientRole = ClientRole.OPERATOR) -> httpx2.AsyncClient:
        client = await visitors.enter_async_context(stranger(console))
        await sign_in(client, who if isinstance(who, str) else tenant.token(who))
        return client

    return browser
