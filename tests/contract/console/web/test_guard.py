"""Requests that the console refuses, whichever page they are for, and the headers of each response."""

from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest
from spawnmesh_client.client import Mesh

from tests.support.console.addresses import (
    PUBLIC,
    addresses_of,
    begin_of,
    get_addresses,
    post_addresses,
    routes,
    some_path,
)
from tests.support.console.furnished import Furnished, furnish, snapshot
from tests.support.console.html import read_html
from tests.support.console.raw_http import request, send_raw
from tests.support.console.running_console import RunningConsole
from tests.support.console.visitors import ConsoleTenant, SignedIn, form_key, open_tenant, sign_in, stranger

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types spawnmesh"
)
FILE_POLICY = "default-src 'none'; sandbox"
HEADERS = {
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
OWN_SITE = {"sec-fetch-site": "same-origin"}


def test_there_are_pages_and_forms() -> None:
    assert len(routes("GET")) > 10
    assert len(routes("POST")) > 5
    assert {route.path for route in routes("GET")} >= set(PUBLIC)


@pytest.mark.parametrize("path", [some_path(one) for one in routes("GET") if one.path not in PUBLIC])
async def test_a_page_needs_a_sign_in(path: str, visitor: httpx2.AsyncClient) -> None:
    answer = await visitor.get(path, params={"a": "b"})
    assert answer.status_code == 303
    asked = answer.headers["location"]
    assert asked == f"/sign-in?next={path.replace('/', '%2F')}%3Fa%3Db"
    for accept in ("text/html-fragment", "application/json", "text/event-stream", "*/*", ""):
        assert (await visitor.get(path, headers={"accept": accept})).status_code == 401
    assert (await visitor.head(path)).status_code == 401
    assert not visitor.cookies


@pytest.mark.parametrize("path", [some_path(one) for one in routes("POST") if one.path not in PUBLIC])
async def test_a_form_needs_a_sign_in(path: str, visitor: httpx2.AsyncClient) -> None:
    sent = {"form_key": "x", "next": "https://evil.example"}
    answer = await visitor.post(path, data=sent)
    assert answer.status_code == 401
    page = read_html(answer.text)
    assert "nothing was sent" in page.text
    target = page.form("/sign-in").fields["next"]
    assert target == "/" or path.startswith(target)
    by_script = await visitor.post(path, data=sent, headers={"accept": "*/*"})
    assert (by_script.status_code, by_script.text) == (401, "Sign in first.\n")
    assert not visitor.cookies


def _of_another_site(console: RunningConsole) -> list[dict[str, str]]:
    """Return the headers of requests that no page of the console sends."""
    own = console.base_url
    return [
        {"sec-fetch-site": "cross-site", "origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site", "origin": own},
        {"sec-fetch-site": "same-site", "origin": own},
        {"sec-fetch-site": "none", "origin": own},
        {"sec-fetch-site": "", "origin": own},
        {},
        {"origin": ""},
        {"origin": "null"},
        {"origin": "https://evil.example"},
        {"origin": f"http://evil.example@{console.host}"},
        {"origin": f"{own}.evil.example"},
        {"origin": own.replace("http://", "https://")},
        {"origin": own.removeprefix("http://")},
        {"origin": f"{own}/"},
        {"origin": "http://["},
        {"referer": f"{own}/sessions"},
    ]


async def test_a_form_of_another_site_is_refused(
    console: RunningConsole, furnished: Furnished, visitor: httpx2.AsyncClient
) -> None:
    tenant, person = furnished.tenant, visitor
    await sign_in(person, tenant.token())
    key = await form_key(person)
    before = await snapshot(tenant.mesh)
    addresses = [*post_addresses(furnished), "/sign-in"]
    async with httpx2.AsyncClient(
        base_url=console.base_url, cookies=person.cookies, trust_env=False, timeout=60
    ) as browser:
        for address in addresses:
            for headers in _of_another_site(console):
                data = {"form_key": key, "token": tenant.token()}
                answer = await browser.post(address, data=data, headers=headers)
                assert answer.status_code == 403, (address, headers)
                assert answer.text == "Another site cannot ask for a change.\n"
                assert "set-cookie" not in answer.headers
        for method in ("PUT", "PATCH", "DELETE", "OPTIONS"):
            answer = await browser.request(method, "/sessions", headers={"origin": "https://evil.example"})
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers
        # A browser that says it in the older way alone is not locked out.
        own_site = await browser.post(
            "/sign-in", data={"token": tenant.token()}, headers={"origin": console.base_url}
        )
        assert own_site.status_code == 303
    assert await snapshot(tenant.mesh) == before


async def test_a_form_without_the_key_of_the_person_changes_nothing(
    console: RunningConsole, tenant: ConsoleTenant, mesh: Mesh, signed_in: SignedIn
) -> None:
    furnished = await furnish(tenant)
    person, again = await signed_in(), await signed_in()
    key = await form_key(person)
    async with open_tenant(console) as other, stranger(console) as outsider:
        await sign_in(outsider, other.token())
        foreign = await form_key(outsider)
    before = await snapshot(mesh)
    wrong: list[dict[str, Any]] = [
        {"data": {"form_key": one}}
        for one in (
            foreign,
            await form_key(again),
            "x",
            "",
            "é",
            key[:-4],
            key[4:],
            f"AAAA{key}",
            key.swapcase(),
        )
    ]
    wrong += [
        {},
        {"params": {"form_key": key}},
        {"files": {"form_key": ("key.txt", key.encode())}},
        {"json": {"form_key": key}},
        {"content": f"form_key={key}", "headers": {"content-type": "text/plain"}},
    ]
    for number, address in enumerate(post_addresses(furnished)):
        for sent in wrong if number == 0 else wrong[:3]:
            answer = await person.post(address, **sent)
            assert answer.status_code == 403, (address, sent, answer.text)
            assert "Nothing was changed" in read_html(answer.text).text, address
            assert "set-cookie" not in answer.headers
    assert await snapshot(mesh) == before
    # With the key, each form reaches its page: the loop above has tested something.
    for address in sorted(post_addresses(furnished), key="/sign-out".__eq__):
        answer = await person.post(address, data={"form_key": key})
        assert answer.status_code not in (401, 404, 421, 500), address
        assert "Nothing was changed" not in answer.text, address


async def test_keys_of_a_form_differ_from_page_to_page(signed_in: SignedIn) -> None:
    """Else the length of the compressed page would tell the key."""
    person = await signed_in()
    keys = {await form_key(person) for _ in range(5)}
    assert len(keys) == 5
    for key in keys:
        assert (await person.post("/start/code", data={"form_key": key, "task": "a"})).status_code == 200


async def test_another_name_for_the_console_is_refused(console: RunningConsole, signed_in: SignedIn) -> None:
    """A name of another site can lead to this address: then its page is of the same origin."""
    person = await signed_in()
    cookie = "; ".join(f"{one.name}={one.value}" for one in person.cookies.jar)
    own, port = console.host, console.host.partition(":")[2]
    names = [
        "evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1.evil.example:{port}",
        f"localhost.evil.example:{port}", f"evil.example@{own}", f"{own}@evil.example", f"{own}.", f"{own},{own}",
        f"{own}/", f"[::1]:{port}", f"127.1:{port}", f"0.0.0.0:{port}", f"LOCALHOST:{port}", "", "é", "*",
    ]  # fmt: skip
    for name in names:
        headers = [f"host: {name}", f"cookie: {cookie}", f"x-forwarded-host: {own}", f"forwarded: host={own}"]
        for path in ("/sessions", "/static/console.js", "/sign-in", "/nothing"):
            status, answer = await send_raw(console, request("GET", path, *headers))
            assert status == 421, name
            assert b"content-security-policy" in answer
        posted = request("POST", "/sign-out", *headers, f"origin: http://{name}", "content-length: 0")
        assert (await send_raw(console, posted))[0] == 421
    without = request("GET", "/sessions", f"cookie: {cookie}", version="HTTP/1.0")
    assert (await send_raw(console, without))[0] == 421
    absolute = request("GET", f"http://{own}/sessions", "host: evil.example", f"cookie: {cookie}")
    assert (await send_raw(console, absolute))[0] == 421
    for name in (own, f"localhost:{port}"):
        right = request("GET", "/sessions", f"host: {name}", f"cookie: {cookie}")
        assert (await send_raw(console, right))[0] == 200


@pytest.mark.parametrize("length", ["-1", "+5", "1e3", "0x10", "abc", "٣", "5, 6", "9" * 40])
async def test_a_strange_length_is_refused(length: str, console: RunningConsole) -> None:
    headers = (f"host: {console.host}", f"origin: {console.base_url}")
    sent = request("POST", "/sign-in", *headers).replace(
        b"connection:", b"content-length: " + length.encode() + b"\r\nconnection:"
    )
    assert (await send_raw(console, sent))[0] in (400, 413)


def _check_headers(answer: httpx2.Response) -> None:
    given = {name: answer.headers.get_list(name) for name in HEADERS}
    assert given == {name: [value] for name, value in HEADERS.items()}, answer.request.url
    (policy,) = answer.headers.get_list("content-security-policy")
    assert policy in (PAGE_POLICY, FILE_POLICY)
    is_page = answer.headers.get("content-type", "").startswith("text/html")
    assert policy == PAGE_POLICY or not is_page
    is_asset = answer.request.url.path == "/static/console.css"
    kept = "no-cache" if is_asset else "no-store"
    assert answer.headers.get_list("cache-control") == [kept], answer.request.url
    for name in ("server", "x-powered-by", "access-control-allow-origin", "strict-transport-security"):
        assert name not in answer.headers


async def test_each_response_confines_the_browser(
    furnished: Furnished, console: RunningConsole, visitors: AsyncExitStack, visitor: httpx2.AsyncClient
) -> None:
    person = await visitors.enter_async_context(stranger(console))
    await sign_in(person, furnished.tenant.token())
    for address in get_addresses(furnished):
        for client in (person, visitor):
            answer, _ = await begin_of(client, address)
            _check_headers(answer)
        assert answer.status_code in (200, 303)
    for address in (
        "/nothing",
        "/static/",
        "/static/nothing.js",
        "/sessions/",
        "/sessions/ses_1",
        "/sign-out",
    ):
        _check_headers(await person.get(address))
    for address in (*post_addresses(furnished), "/sign-in"):
        _check_headers(await person.post(address))
        _check_headers(await visitor.post(address, headers={"sec-fetch-site": "cross-site"}))
    _check_headers(await person.get("/sessions?expression=nonsense"))
    _check_headers(await person.get("/sessions", headers={"host": "evil.example"}))
    _check_headers(await person.post("/sign-in", data={"token": "x" * 100_000}))
    _check_headers(await person.request("TRACE", "/sessions"))


async def test_files_beside_the_assets_cannot_be_read(console: RunningConsole) -> None:
    for path in (
        "/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/..%5capp.py",
        "/static//etc/passwd", "/static/%2fetc%2fpasswd", "/static/console.css%00", "/static/./../app.py",
        "/static/....//app.py", "/static", "/static/",
    ):  # fmt: skip
        status, answer = await send_raw(console, request("GET", path, f"host: {console.host}"))
        assert status in (307, 400, 404), path
        assert b"spawnmesh_console" not in answer


async def test_an_unknown_id_is_not_found(signed_in: SignedIn, furnished: Furnished) -> None:
    """Neither malformed ids nor ids of another tenant are told apart, and no page fails."""
    person = await signed_in()
    strange = ("1", "x" * 300, "%00", "%0a", "..%2f..", "ses_1", "%E2%80%AE", "%ff", "a b", "'\"<>")
    for route in routes("GET"):
        if "{" not in route.path:
            continue
        for value in strange:
            path = route.path
            for name, kind in route.param_convertors.items():
                is_number = type(kind).__name__ == "IntegerConvertor"
                placeholder = f"{{{name}:int}}" if is_number else f"{{{name}}}"
                path = path.replace(placeholder, "9" * 30 if is_number else value)
            answer, text = await begin_of(person, path)
            refused = (400, 403, 404) if route.path.startswith("/tenants/") else (400, 404)
            assert answer.status_code in refused, (path, answer.status_code, text[:500])


@pytest.mark.parametrize("route", routes("GET"), ids=lambda route: route.path)
async def test_strange_parameters_do_not_break_a_page(
    route: object, furnished: Furnished, console: RunningConsole, visitors: AsyncExitStack
) -> None:
    person = await visitors.enter_async_context(stranger(console))
    await sign_in(person, furnished.tenant.token())
    names = (
        "page_token", "before", "at", "after_event", "after_seq", "part", "state", "agent", "label", "reason", "since",
        "expression", "show", "session_id", "done", "decision", "explain", "fallbacks", "task", "model", "view", "code", "next",
    )  # fmt: skip
    for address in addresses_of(route, furnished)[:2]:  # type: ignore[arg-type]
        for value in ("\0", "-1", "9" * 30, "'\"><script>\u202e", "x" * 1_500, "٣"):
            answer, text = await begin_of(
                person, str(httpx2.URL(address).copy_merge_params(dict.fromkeys(names, value)))
            )
            assert answer.status_code < 500, (address, value, text[:2000])
            assert "><script>" not in text


async def test_strange_headers_do_not_break_a_page(
    furnished: Furnished, console: RunningConsole, visitors: AsyncExitStack
) -> None:
    person = await visitors.enter_async_context(stranger(console))
    await sign_in(person, furnished.tenant.token())
    own = "; ".join(f"{one.name}={one.value}" for one in person.cookies.jar)
    strange: list[dict[str, str]] = [
        *({"last-event-id": value} for value in ("nonsense", "-1", "9" * 60, ".", "1.2.3", "%00", "\u00e9")),
        {"range": "bytes=5-1,0-", "if-none-match": '"x"', "if-modified-since": "never"},
        {"accept-language": "x" * 2_000, "accept-encoding": "br;q=nan, gzip;q=2", "user-agent": ""},
        {"cookie": f"a; =b; c=\x7f; {own}; spawnmesh_console={'x' * 3_000}; d"},
        {"x-forwarded-for": "1.2.3.4", "x-forwarded-proto": "https", "x-original-url": "/sign-out"},
    ]
    for route in routes("GET"):
        for address in addresses_of(route, furnished)[:1]:
            for headers in strange:
                given = {name: value.encode("latin-1") for name, value in headers.items()}
                async with person.stream("GET", address, headers=given) as answer:
                    assert answer.status_code < 500, (address, headers)
                    assert "x-forwarded-proto" not in headers or "https" not in answer.headers.get(
                        "location", ""
                    )
