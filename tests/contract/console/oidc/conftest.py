"""One provider, and consoles whose people sign in there. Before each test it knows a person, and tells
the truth.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import httpx2
import pytest
from spawnmesh_devstack.stack import Stack

from tests.support.console.loopback_provider import Lies, LoopbackProvider, serving_provider
from tests.support.console.oidc_consoles import (
    CLIENT,
    PUBLIC_CLIENT,
    SECRET,
    OidcConsoles,
    start_trusting_session,
)
from tests.support.console.running_console import RunningConsole
from tests.support.console.visitors import stranger
from tests.support.mesh.new_tenant import new_tenant


@pytest.fixture(scope="package")
def provider() -> Iterator[LoopbackProvider]:
    with serving_provider() as served:
        served.clients |= {CLIENT: SECRET, PUBLIC_CLIENT: None}
        yield served


@pytest.fixture(scope="package")
def trusted(provider: LoopbackProvider) -> dict[str, str]:
    """Return the settings by which the services accept tokens of the provider."""
    return {
        "issuer": provider.issuer,
        "audience": "spawnmesh",
        "jwks_url": f"{provider.issuer}/jwks",
        "tenant_claim": "org",
        "roles_claim": "realm_access.roles",
    }


@pytest.fixture(scope="package")
async def consoles(stack: Stack, provider: LoopbackProvider, trusted: dict[str, str]) -> OidcConsoles:
    session = await start_trusting_session(stack, "session-oidc", [trusted])
    return OidcConsoles(stack, provider.issuer, session, "oidc-console", provider.redirect_uris)


@pytest.fixture(scope="package")
async def console(consoles: OidcConsoles, trusted: dict[str, str]) -> RunningConsole:
    """Start a console with a secret, whose people have access tokens."""
    secret = consoles.stack.data_dir / "oidc-client-secret"
    secret.write_text(f"{SECRET}\n")
    return await consoles.start(
        SIGN_IN_CLIENT_ID=CLIENT,
        SIGN_IN_CLIENT_SECRET_FILE=str(secret),
        OIDC_ISSUERS=json.dumps([trusted]),
        SIGN_IN_SCOPES="openid profile",
        SIGN_IN_PARAMETERS=json.dumps({"audience": "spawnmesh", "url": "a&b"}),
    )


@pytest.fixture(scope="package")
async def tenant_id(stack: Stack) -> str:
    return await new_tenant(stack)


@pytest.fixture(autouse=True)
def person(provider: LoopbackProvider, tenant_id: str) -> Iterator[LoopbackProvider]:
    """Let the provider tell the truth about a person of the tenant."""
    provider.lies = Lies()
    provider.algorithm, provider.authentications = "RS256", ["client_secret_basic"]
    provider.claims = {"sub": "ada", "org": tenant_id, "realm_access": {"roles": ["user", "offline_access"]}}
    provider.asked.clear()
    provider.exchanged.clear()
    yield provider
    provider.lies = Lies()


@pytest.fixture
async def browsers() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as exits:
        yield exits


@pytest.fixture
async def browser(console: RunningConsole, browsers: AsyncExitStack) -> httpx2.AsyncClient:
    """Return the browser of a person who has not signed in."""
    return await browsers.enter_async_context(stranger(console))
