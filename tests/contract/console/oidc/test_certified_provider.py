"""People sign in at a provider of others, which is certified for OpenID Connect: `oidc-provider` of
npm.
"""

import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx2
import pytest
from spawnmesh_client.client import connect
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.stack import Stack

from tests.support.console.html import read_html
from tests.support.console.oidc_consoles import (
    CALLBACK,
    CLIENT,
    OidcConsoles,
    begin,
    come_back,
    start_trusting_session,
)
from tests.support.console.running_console import RunningConsole
from tests.support.console.visitors import read, stranger
from tests.support.npm import install_packages

NODE = Path(__file__).with_name("node")
SECRET = "p+ss%w/rd"  # It takes printable ASCII alone.


@contextmanager
def running_provider(folder: Path, tenant_id: str, port: int, console_url: str) -> Iterator[None]:
    """Run the provider during the block. It knows one client, whose people come back to the address."""
    client = {
        "client_id": CLIENT,
        "client_secret": SECRET,
        "redirect_uris": [f"{console_url}{CALLBACK}"],
        "grant_types": ["authorization_code"],
    }
    asked = json.dumps({"clients": [client], "tenant": tenant_id, "port": port})
    with subprocess.Popen(
        ["node", "provider.mjs", asked],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def provider_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("openid-provider") / "node"
    shutil.copytree(NODE, folder, ignore=shutil.ignore_patterns("node_modules"))
    install_packages(folder)
    return folder


@pytest.fixture(scope="module")
async def console(stack: Stack, tenant_id: str, provider_files: Path) -> AsyncIterator[RunningConsole]:
    """Start the provider, and a console whose people have access tokens of it for the mesh."""
    (port,) = free_ports(1)
    issuer = f"http://127.0.0.1:{port}"
    trusted = {"issuer": issuer, "audience": "spawnmesh", "jwks_url": f"{issuer}/jwks"}
    session = await start_trusting_session(stack, "session-certified", [trusted])
    secret = stack.data_dir / "certified-secret"
    secret.write_text(SECRET)
    consoles = OidcConsoles(stack, issuer, session, "certified-console")
    running = await consoles.start(
        SIGN_IN_CLIENT_ID=CLIENT,
        SIGN_IN_CLIENT_SECRET_FILE=str(secret),
        SIGN_IN_PARAMETERS=json.dumps({"resource": "https://mesh.example.com"}),
    )
    with running_provider(provider_files, tenant_id, port, running.base_url):
        yield running


@pytest.fixture
async def browser(console: RunningConsole) -> AsyncIterator[httpx2.AsyncClient]:
    async with stranger(console) as client:
        yield client


async def followed(client: httpx2.AsyncClient, address: str) -> tuple[str, str]:
    """Follow the redirects of the provider. Return the address and the page; without a page, if the
    person is sent back.
    """
    while True:
        if urlsplit(address).path == CALLBACK:
            return address, ""
        answer = await client.get(address)
        if answer.status_code == 200:
            return address, answer.text
        assert answer.status_code in (302, 303), answer.text
        address = urljoin(address, answer.headers["location"])


async def sign_in(client: httpx2.AsyncClient, address: str) -> str:
    """Fill in the forms of the provider, as a person does. Return the address of the way back."""
    address, page = await followed(client, address)
    while page:
        (form,) = read_html(page).forms
        filled = {**form.fields, "login": "ada", "password": "secret"}
        answer = await client.post(urljoin(address, form.action), data=filled)
        address, page = await followed(client, urljoin(address, answer.headers["location"]))
    return address


def path_of(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.path}?{parts.query}"


async def test_person_signs_in_and_sees_the_sessions_of_the_tenant(
    browser: httpx2.AsyncClient, stack: Stack, tenant_id: str
) -> None:
    async with connect(targets=stack.targets, token=stack.client_token(tenant_id)) as mesh:
        await mesh.spawn("Say hello", label="seen-by-ada")
    callback = path_of(await sign_in(browser, await begin(browser)))
    back = await come_back(browser, callback)
    assert (back.status_code, back.headers["location"]) == (303, "/sessions"), back.text
    assert "seen-by-ada" in (await read(browser, "/sessions")).text


async def test_person_who_is_known_there_is_sent_back_without_a_question(browser: httpx2.AsyncClient) -> None:
    await come_back(browser, path_of(await sign_in(browser, await begin(browser))))
    page = await read(browser, "/sessions")
    await browser.post("/sign-out", data=page.form("/sign-out").fields)
    address, asked = await followed(browser, await begin(browser))
    assert asked == ""
    assert (await come_back(browser, path_of(address))).status_code == 303
    assert (await browser.get("/sessions")).status_code == 200


async def test_code_of_another_browser_is_refused_by_the_provider(
    browser: httpx2.AsyncClient, console: RunningConsole
) -> None:
    async with stranger(console) as victim:
        theirs = dict(httpx2.URL(await sign_in(victim, await begin(victim))).params)
    mine = httpx2.URL(await sign_in(browser, await begin(browser)))
    injected = mine.copy_merge_params({"code": theirs["code"]})
    refused = await come_back(browser, path_of(str(injected)))
    assert refused.status_code == 403
    assert "invalid_grant" in read_html(refused.text).text


async def test_person_who_cancels_is_told_so(browser: httpx2.AsyncClient) -> None:
    address, page = await followed(browser, await begin(browser))
    (cancel,) = [link for link in read_html(page).links if link.endswith("/abort")]
    back, _ = await followed(browser, urljoin(address, cancel))
    refused = await come_back(browser, path_of(back))
    assert refused.status_code == 403
    assert "access_denied" in read_html(refused.text).text
