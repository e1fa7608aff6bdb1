"""Consoles whose people sign in at a provider, and the steps of a browser on its way there and back."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
from cryptography.fernet import Fernet
from spawnmesh_devstack.members import Member, Readiness, process_variables, python_module
from spawnmesh_devstack.ports import LOOPBACK, free_ports
from spawnmesh_devstack.stack import Stack

from tests.support.console.html import Page, read_html
from tests.support.console.running_console import RunningConsole

BEGIN, CALLBACK = "/sign-in/oidc", "/sign-in/oidc/callback"
CLIENT, SECRET = "console:1", "p+ss%w/rd é"  # Both need the encoding of RFC 6749.
PUBLIC_CLIENT = "spawnmesh"  # Its ID tokens have the audience of the mesh.
_NUMBERS = count(1)  # Fixtures of a package start again when its tests are not run in one go.


async def start_trusting_session(stack: Stack, name: str, issuers: list[Mapping[str, str]]) -> str:
    """Start one more process of the session service, which accepts tokens of the issuers too. Return
    its address.
    """
    (port,) = free_ports(1)
    own = {
        "DATABASE_URL": stack.databases["session"].app,
        "OIDC_ISSUERS": json.dumps(issuers),
        **{_target_of(service): to for service, to in stack.targets.items() if service != "session"},
    }
    variables = {
        **process_variables("session", port, stack.keys, stack.otlp_endpoint),
        **{f"SESSION_{variable}": value for variable, value in own.items()},
    }
    await stack.start(
        Member(
            f"{name}-{next(_NUMBERS)}",
            python_module("spawnmesh_session", "serve"),
            variables,
            Readiness.GRPC,
            port,
        )
    )
    return f"{LOOPBACK}:{port}"


@dataclass
class OidcConsoles:
    """Starts consoles that know an issuer and a session service that trusts it."""

    stack: Stack
    issuer: str
    session_target: str
    name: str
    redirect_uris: set[str] = field(default_factory=set)
    """The addresses to which people come back."""
    host: str = LOOPBACK
    """The name of this machine in the addresses of the consoles."""

    async def start(self, **settings: str) -> RunningConsole:
        """Start a console. `settings` are further variables, without their prefix."""
        name, (port,) = f"{self.name}-{next(_NUMBERS)}", free_ports(1)
        folder = self.stack.data_dir / name
        folder.mkdir()
        key_file = folder / "cookie.key"
        key_file.write_bytes(Fernet.generate_key())
        base_url = f"http://{self.host}:{port}"
        own = {
            "COOKIE_KEY_FILE": str(key_file),
            "PUBLIC_URL": base_url,
            "SIGN_IN_ISSUER": self.issuer,
            **{_target_of(service): to for service, to in self.stack.targets.items()},
            "SESSION_TARGET": self.session_target,
            **settings,
        }
        self.redirect_uris.add(f"{own['PUBLIC_URL']}{CALLBACK}")
        variables = {
            **process_variables("console", port, self.stack.keys, self.stack.otlp_endpoint),
            **{f"CONSOLE_{variable}": value for variable, value in own.items()},
        }
        argv = python_module("spawnmesh_console", "serve")
        await self.stack.start(Member(name, argv, variables, Readiness.TCP, port))
        return RunningConsole(self.stack, name, base_url, folder / "none", Path(own["COOKIE_KEY_FILE"]))


async def begin(client: httpx2.AsyncClient, target: str = "/sessions") -> str:
    """Follow the button of the page. Return the address of the provider."""
    answer = await client.get(BEGIN, params={"next": target}, headers={"sec-fetch-site": "same-origin"})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def at_provider(client: httpx2.AsyncClient, address: str) -> str:
    """Go to the provider. Return the path of the console to which it sends the person back."""
    answer = await client.get(address)
    assert answer.status_code == 302, answer.text
    parts = urlsplit(answer.headers["location"])
    assert parts.path == CALLBACK
    return f"{parts.path}?{parts.query}"


async def come_back(client: httpx2.AsyncClient, callback: str) -> httpx2.Response:
    """Come back to the console from the other site."""
    return await client.get(callback, headers={"sec-fetch-site": "cross-site"})


async def sign_in_there(client: httpx2.AsyncClient, target: str = "/sessions") -> httpx2.Response:
    """Sign in at the provider. Return the answer to the way back."""
    return await come_back(client, await at_provider(client, await begin(client, target)))


async def is_signed_in(client: httpx2.AsyncClient) -> bool:
    return (await client.get("/sessions")).status_code == 200


async def refused(
    client: httpx2.AsyncClient, answer: httpx2.Response, *, status: int = 403, says: str = ""
) -> Page:
    """Check that the answer is the page to sign in, with a problem, and that no cookie is left."""
    assert answer.status_code == status, answer.text
    page = read_html(answer.text)
    (problem,) = [one for one in page.tags("p") if one.get("role") == "alert"]
    assert problem["class"] == "problem"
    assert says in page.text
    assert page.form("/sign-in").method == "post"
    assert [cookie.name for cookie in client.cookies.jar] == []
    assert not await is_signed_in(client)
    return page


def changed(callback: str, **parameters: str | None) -> str:
    """Return the callback with other parameters; None removes one."""
    parts = urlsplit(callback)
    given = {**dict(parse_qsl(parts.query)), **parameters}
    return f"{parts.path}?{urlencode({name: one for name, one in given.items() if one is not None})}"


def set_cookies(answer: httpx2.Response) -> dict[str, Any]:
    """Return the cookies that an answer sets, by name."""
    return {
        name: morsel
        for header in answer.headers.get_list("set-cookie")
        for name, morsel in SimpleCookie(header).items()
    }


def _target_of(service: str) -> str:
    return f"{service.replace('-', '_').upper()}_TARGET"
