"""Rules that each page keeps: it is found by its route, or by a link."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from urllib.parse import urljoin, urlsplit

import httpx2
import pytest
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.addresses import begin_of, get_addresses, is_page, post_addresses
from tests.support.console.furnished import UNSEEN, Furnished, snapshot
from tests.support.console.html import Page, read_html
from tests.support.console.running_console import RunningConsole
from tests.support.console.visitors import ConsoleTenant, SignedIn, form_key, read, sign_in, stranger

MAX_PAGES = 400
READERS_FORMS = {"/sign-in", "/sign-out", "/start/code"}
"""The forms that change nothing in the mesh."""


@pytest.fixture
async def owner(
    furnished: Furnished, console: RunningConsole, visitors: AsyncExitStack
) -> httpx2.AsyncClient:
    """Sign in an operator of the furnished tenant."""
    client = await visitors.enter_async_context(stranger(console))
    await sign_in(client, furnished.tenant.token())
    return client


async def pages_of(client: httpx2.AsyncClient, furnished: Furnished) -> AsyncIterator[tuple[str, str, Page]]:
    """Yield each page and each part of a page, with its address and its text."""
    for address in get_addresses(furnished):
        answer, text = await begin_of(client, address)
        if answer.headers.get("content-type", "").startswith("text/html") and text:
            assert answer.status_code == 200, address
            yield address, text, read_html(text)


async def walk(client: httpx2.AsyncClient, *begin: str) -> dict[str, tuple[int, str]]:
    """Follow all links, and return the status and the text of each address."""
    found: dict[str, tuple[int, str]] = {}
    waiting = [*begin]
    while waiting:
        assert len(found) < MAX_PAGES, "the walk does not end"
        address = waiting.pop()
        if address in found:
            continue
        answer, text = await begin_of(client, address)
        found[address] = answer.status_code, text
        if answer.is_redirect:
            waiting.append(answer.headers["location"])
        elif is_page(answer, text):
            page = read_html(text)
            refreshed = [one["data-refresh"] for one in _all_attributes(page) if one.get("data-refresh")]
            for link in (*page.links, *refreshed):
                target = urlsplit(urljoin(f"http://console{address}", link))
                assert target.netloc == "console", f"{address} leads to {link}"
                waiting.append(target._replace(scheme="", netloc="", fragment="").geturl())
    return found


def _all_attributes(page: Page) -> list[dict[str, str]]:
    return [one.attributes for one in page.elements]


async def test_no_link_is_broken(owner: httpx2.AsyncClient) -> None:
    found = await walk(owner, "/")
    broken = {address: status for address, (status, _) in found.items() if status not in (200, 303)}
    assert broken == {}
    assert len(found) > 15


async def test_a_reader_finds_no_broken_link_either(
    furnished: Furnished, console: RunningConsole, visitor: httpx2.AsyncClient
) -> None:
    await sign_in(visitor, furnished.tenant.token(ClientRole.READER))
    found = await walk(visitor, "/")
    assert {address: status for address, (status, _) in found.items() if status not in (200, 303)} == {}


async def test_a_tenant_sees_nothing_of_another(
    furnished: Furnished, tenant: ConsoleTenant, signed_in: SignedIn
) -> None:
    own = await tenant.mesh.spawn("Say hello.", label="own")
    await own.kill()
    outsider = await signed_in()
    found = await walk(outsider, "/", *get_addresses(furnished))
    assert f"/sessions/{own.session_id}" in found
    approvals = furnished.waiting_approval, furnished.asking_approval
    ids = (*furnished.sessions, *approvals, furnished.operation)
    for address, (status, text) in found.items():
        assert furnished.marker not in text, address
        assert furnished.tenant.tenant_id not in text, address
        named = [one for one in ids if one in address]
        if named:
            assert status == 404, address
        else:
            assert not any(one in text for one in ids), address


async def test_a_tenant_changes_nothing_of_another(furnished: Furnished, signed_in: SignedIn) -> None:
    outsider = await signed_in()
    before = await snapshot(furnished.tenant.mesh)
    names = (furnished.plugin, f"/{furnished.webhook}/", f"/{furnished.schedule}/")
    ids = (*furnished.sessions, furnished.waiting_approval, furnished.operation, *names)
    sent = 0
    for address in post_addresses(furnished):
        if any(one in address for one in ids):
            data = {"form_key": await form_key(outsider), "text": "hello", "decision": "approve"}
            answer = await outsider.post(address, data=data)
            assert answer.status_code == 404, (address, answer.text)
            assert furnished.marker not in answer.text
            sent += 1
    assert sent > 5
    assert await snapshot(furnished.tenant.mesh) == before


async def test_a_reader_is_offered_no_change_and_can_make_none(
    furnished: Furnished, visitor: httpx2.AsyncClient
) -> None:
    await sign_in(visitor, furnished.tenant.token(ClientRole.READER))
    async for address, _, page in pages_of(visitor, furnished):
        offered = {form.action for form in page.forms if form.method == "post"}
        assert offered <= READERS_FORMS, address
    before = await snapshot(furnished.tenant.mesh)
    for address in post_addresses(furnished):
        if address not in READERS_FORMS:
            data = {
                "form_key": await form_key(visitor),
                "text": "hello",
                "task": "hello",
                "decision": "approve",
            }
            answer = await visitor.post(address, data=data)
            assert answer.status_code in (400, 403), (address, answer.text)
    assert await snapshot(furnished.tenant.mesh) == before


async def test_texts_of_others_are_harmless(furnished: Furnished, owner: httpx2.AsyncClient) -> None:
    """No text becomes markup, a script or a template, and no character is unseen or obeyed."""
    shown = 0
    async for address, text, page in pages_of(owner, furnished):
        shown += furnished.marker in text
        assert not {*UNSEEN} & {*text}, address
        for one in page.elements:
            assert one.tag not in ("iframe", "object", "embed", "base", "style", "math"), address
            strange = [
                name for name in one.attributes if name.startswith("on") or name in ("style", "srcdoc")
            ]
            assert not strange, (address, one)
            for name in ("href", "src", "action", "formaction", "data-refresh", "data-live"):
                assert re.match(r"(/(?!/)|\?|#|$)", one.attributes.get(name, "")), (address, one)
        for script in page.tags("script"):
            assert script.keys() == {"type", "src"}, address
            assert script["src"].startswith("/static/"), address
        assert "alert(1)" not in "".join(one.get("src", "") for one in _all_attributes(page))
        assert "490063" not in page.text.replace(",", "")
    assert shown >= 8, "the hostile text is on most pages"


async def test_pages_have_a_title_a_heading_and_a_language(
    furnished: Furnished, owner: httpx2.AsyncClient
) -> None:
    titles = []
    async for address, text, page in pages_of(owner, furnished):
        if "<!doctype html>" not in text:
            continue
        titles.append(page.title)
        assert page.title.endswith(" · Spawnmesh"), address
        assert page.title.removesuffix(" · Spawnmesh").strip(), address
        assert [one["lang"] for one in page.tags("html")] == ["en"], address
        assert len(page.tags("h1")) == 1, address
        assert len(page.tags("main")) == 1, address
        ids = [one["id"] for one in _all_attributes(page) if "id" in one]
        assert len(ids) == len({*ids}), address
    assert len(titles) > 8


async def test_pages_of_many_people_at_once_are_their_own(
    furnished: Furnished, console: RunningConsole, visitors: AsyncExitStack, signed_in: SignedIn
) -> None:
    """Neither a cache nor a shared connection mixes people up."""
    owner = await visitors.enter_async_context(stranger(console))
    await sign_in(owner, furnished.tenant.token())
    outsider = await signed_in(ClientRole.READER)
    pages = await asyncio.gather(*(read(client, "/sessions") for client in [owner, outsider] * 10))
    for owned, foreign in zip(pages[::2], pages[1::2], strict=True):
        assert furnished.marker in owned.text
        assert "Role operator" in owned.text
        assert furnished.marker not in foreign.text
        assert "Role reader" in foreign.text
