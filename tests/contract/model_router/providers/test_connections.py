"""Connections to providers that are refused, reset, cut, untrusted, stale or proxied, with every
SDK.
"""

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from spawnmesh_devstack.ports import LOOPBACK, free_ports

from tests.support.model_router.fixtures import Router, World
from tests.support.model_router.provider import chat, sse
from tests.support.runtime.authority import Authority

KINDS = ["openai", "openai_compatible", "anthropic", "gemini"]
Spoken = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


@pytest.fixture
async def world(world: World) -> World:
    world.provider.on("two", sse(*chat("from two")))
    return world


@asynccontextmanager
async def listening(spoken: Spoken, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Yield a port. Every connection to it gets this handler."""
    writers: list[asyncio.StreamWriter] = []

    async def noted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await spoken(reader, writer)

    server = await asyncio.start_server(noted, LOOPBACK, 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]
    for writer in writers:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def asked(world: World, kind: str, base_url: str) -> tuple[Router, str]:
    """Return a router with a model of a provider at this address, and the name of the model."""
    name = f"p{secrets.token_hex(4)}"
    config = world.config()
    config["providers"][name] = {"kind": kind, "base_url": base_url, "credentials": ["env:KEY"]}
    config["models"][f"{name}/m"] = {"context_window": 1000, "max_output": 100}
    return await world.router(config), f"{name}/m"


async def verdict_of(world: World, kind: str, base_url: str) -> tuple[str, str]:
    """Return the verdict of the model at this address, while another model answers."""
    router, model = await asked(world, kind, base_url)
    answered = await router.generate(model, world.ref("two"))
    assert answered.text == "from two", answered.refusal
    return answered.verdicts[0][1:]


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.close()


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()


def _cut_within(framing: bytes) -> Spoken:
    async def spoken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_HEAD + framing)
        await writer.drain()
        writer.close()

    return spoken


async def _gibberish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    writer.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_Generate__nobody_listens(world: World, kind: str) -> None:
    (port,) = free_ports(1)
    assert await verdict_of(world, kind, f"http://{LOOPBACK}:{port}") == ("FAILED", "TIMEOUT")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "spoken",
    [
        _hang_up,
        _reset,
        _gibberish,
        _cut_within(b"content-length: 408\r\n\r\n"),
        _cut_within(b"transfer-encoding: chunked\r\n\r\n"),
        _cut_within(b"transfer-encoding: chunked\r\n\r\n400\r\ndata: {"),
    ],
    ids=["closed", "reset", "gibberish", "cut by length", "cut by chunk", "cut within a chunk"],
)
async def test_Generate__a_connection_that_breaks_before_an_answer(
    world: World, kind: str, spoken: Spoken
) -> None:
    async with listening(spoken) as port:
        assert await verdict_of(world, kind, f"http://{LOOPBACK}:{port}") == ("FAILED", "TIMEOUT")


@pytest.mark.parametrize("kind", KINDS)
async def test_Generate__a_certificate_that_is_not_trusted(world: World, kind: str, tmp_path: Path) -> None:
    leaf = Authority("nobody's").leaf("provider")
    (tmp_path / "leaf.pem").write_bytes(leaf.certificate + leaf.key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "leaf.pem")
    async with listening(_hang_up, tls) as port:
        assert await verdict_of(world, kind, f"https://localhost:{port}") == ("FAILED", "TLS_CERTIFICATE")


async def test_Generate__a_kept_connection_that_the_provider_has_closed_is_not_used(world: World) -> None:
    body = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    opened: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_HEAD + f"content-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    async with listening(answer) as port:
        router, model = await asked(world, "openai_compatible", f"http://{LOOPBACK}:{port}")
        assert (await router.generate(model)).text == "hi"
        opened[0].close()
        await opened[0].wait_closed()
        assert (await router.generate(model)).text == "hi"
    assert len(opened) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_Generate__the_proxy_of_the_environment_is_used(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines.append(head.partition(b"\r\n")[0])
        writer.close()

    async with listening(proxy) as port:
        monkeypatch.setenv("HTTP_PROXY", f"http://{LOOPBACK}:{port}")
        monkeypatch.setenv("NO_PROXY", LOOPBACK)
        await verdict_of(world, kind, "http://provider.invalid/v1")
    assert lines
    assert lines[0].startswith(b"POST http://provider.invalid/v1/")
