"""The rules for every request and response, around an application that fails."""

import asyncio

import httpx2
import pytest
from spawnmesh_console.app import open_app
from spawnmesh_console.settings import ConsoleSettings
from spawnmesh_console.web.guard import BodyTooLarge, BodyTooSlow, Guard, answer_too_large, bounded
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message

HOST = "console.example.com"
OWN = {"origin": f"https://{HOST}"}


async def _fail(_request: Request) -> Response:
    raise RuntimeError("a secret of the program")


async def _length(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


async def _own_policy(_request: Request) -> Response:
    return PlainTextResponse("", headers={"content-security-policy": "sandbox", "cache-control": "private"})


def _guarded(*, is_https: bool = True) -> Guard:
    routes = [Route("/fail", _fail), Route("/length", _length, methods=["POST"]), Route("/own", _own_policy)]
    app = Starlette(routes=routes, exception_handlers={BodyTooLarge: answer_too_large})
    return Guard(app, hosts=[HOST], is_https=is_https, max_body_bytes=1_000)


def _client(app: ASGIApp, *, scheme: str = "https") -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url=f"{scheme}://{HOST}")


async def test_the_answer_to_an_error_has_the_headers_and_no_detail() -> None:
    async with _client(_guarded()) as client:
        answer = await client.get("/fail")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    for name in ("content-security-policy", "x-content-type-options", "cache-control", "x-frame-options"):
        assert name in answer.headers


async def test_a_response_keeps_a_header_of_its_own() -> None:
    async with _client(_guarded()) as client:
        answer = await client.get("/own")
    assert answer.headers.get_list("content-security-policy") == ["sandbox"]
    assert answer.headers.get_list("cache-control") == ["private"]
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_browsers_stay_with_https_where_it_is_used() -> None:
    async with _client(_guarded()) as client:
        assert (await client.get("/own")).headers["strict-transport-security"] == "max-age=31536000"
    async with _client(_guarded(is_https=False), scheme="http") as client:
        assert "strict-transport-security" not in (await client.get("/own")).headers


@pytest.mark.parametrize(
    "origin", [f"http://{HOST}", f"https://{HOST}:443", f"https://www.{HOST}", "null", ""]
)
async def test_a_form_of_another_origin_is_refused(origin: str) -> None:
    """A page of the same host without HTTPS can be anybody's: it is another origin."""
    async with _client(_guarded()) as client:
        assert (await client.post("/length", headers={"origin": origin})).status_code == 403
        assert (await client.post("/length", headers=OWN)).status_code == 200


async def test_a_body_is_read_up_to_the_limit() -> None:
    async def body(count: int):  # type: ignore[no-untyped-def]
        for _ in range(count):
            yield b"x" * 100

    async with _client(_guarded()) as client:
        assert (await client.post("/length", headers=OWN, content=b"x" * 1_000)).text == "1000"
        assert (await client.post("/length", headers=OWN, content=b"x" * 1_001)).status_code == 413
        assert (await client.post("/length", headers=OWN, content=body(10))).text == "1000"
        answer = await client.post("/length", headers=OWN, content=body(11))
    assert (answer.status_code, answer.text) == (413, "The form is too large.\n")
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_body_is_waited_for_with_a_limit_and_what_follows_without() -> None:
    ends = asyncio.Event()

    async def half() -> Message:
        await ends.wait()
        return {"type": "http.disconnect"}

    with pytest.raises(BodyTooSlow):
        await bounded(half, 1_000, seconds=0.01)()

    sent: list[Message] = [{"type": "http.request", "body": b"a", "more_body": False}]

    async def whole() -> Message:
        return sent.pop() if sent else await half()

    receive = bounded(whole, 1_000, seconds=0.01)
    assert (await receive())["body"] == b"a"
    waiting = asyncio.create_task(receive())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    ends.set()
    assert (await waiting)["type"] == "http.disconnect"


async def test_a_body_in_small_pieces_has_an_end() -> None:
    async def trickle() -> Message:
        await asyncio.sleep(0.002)
        return {"type": "http.request", "body": b"a", "more_body": True}

    receive = bounded(trickle, 1_000_000, seconds=0.05)

    async def read_all() -> None:
        while True:
            await receive()

    with pytest.raises(BodyTooSlow):
        await read_all()


TARGETS = {
    f"{service}_target": "127.0.0.1:1"
    for service in ("session", "transcript", "model_router", "attachment_blob", "hook")
}


@pytest.mark.parametrize(
    ("given", "served", "refused"),
    [
        ({"listen": "127.0.0.1:8700"}, ("127.0.0.1:8700", "localhost:8700"), ("localhost", "127.0.0.1")),
        ({"listen": "[::1]:8700"}, ("[::1]:8700", "localhost:8700"), ("127.0.0.1:8700",)),
        (
            {"listen": "0.0.0.0:8700", "public_url": "http://console.test"},
            ("console.test",),
            ("localhost:8700", "0.0.0.0:8700", "console.test:8700", "www.console.test"),
        ),
        (
            {"listen": "0.0.0.0:80", "public_url": "http://console.test:8080/"},
            ("console.test:8080",),
            ("console.test",),
        ),
        ({"listen": "127.0.0.1:80"}, ("127.0.0.1", "localhost"), ("127.0.0.1:80",)),
        ({"public_url": "http://Console.Test:80"}, ("console.test",), ("console.test:80",)),
        ({"public_url": "https://console.test:443"}, ("console.test",), ("console.test:443",)),
    ],
)
async def test_the_console_is_served_under_the_names_that_browsers_send(
    given: dict[str, str], served: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    """A browser leaves out the port of the scheme, and writes the name in small letters."""
    settings = ConsoleSettings(**{**TARGETS, **given})  # type: ignore[arg-type]
    async with open_app(settings) as app, _client(app, scheme="http") as client:
        for host in served:
            answer = await client.get("/sign-in", headers={"host": host})
            assert answer.status_code == 200, host
        for host in refused:
            assert (await client.get("/sign-in", headers={"host": host})).status_code == 421, host
