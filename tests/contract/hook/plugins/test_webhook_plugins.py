"""Webhooks, checks at registration, PausePlugin and TestPlugin."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_plugin import Handlers, deny, hook
from spawnmesh_plugin.webhook import WebhookPlugin

from tests.support.hook.decisions import decision_of
from tests.support.hook.fixtures import (
    CLOSED,
    DEAD_ENDPOINT,
    ENDED,
    FINALIZE,
    OPEN,
    SPAWN,
    HookMesh,
    Tenant,
    refused,
)
from tests.support.hook.scripted_plugin import ALLOW, revise
from tests.support.hook.scripted_plugin import deny as denied
from tests.support.hook.webhook_server import Handle, https_site, server_tls, write_certificate


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls") / "webhook.pem")


@pytest.fixture
async def site(certificate: Path) -> AsyncIterator[Callable[[Handle], Awaitable[str]]]:
    """Give a function that serves a handler over HTTPS and returns its URL."""
    async with AsyncExitStack() as stack:

        async def served(handle: Handle) -> str:
            return await stack.enter_async_context(https_site(handle, certificate))

        yield served


@pytest.fixture
async def tenant(mesh: HookMesh, certificate: Path) -> Tenant:
    return mesh.tenant(await mesh.replica(webhook_ca_file=certificate))


async def test_a_webhook_can_check_the_signature(
    tenant: Tenant, site: Callable[[Handle], Awaitable[str]]
) -> None:
    @hook("before_spawn")
    def judge(event: Any) -> Any:
        return deny(f"no {event.agent_id}")

    plugins: list[WebhookPlugin] = []

    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=await plugins[0].answer(request.headers, await request.read()))

    plugin = pb.Plugin(name="a", endpoint=await site(handle), hooks=[SPAWN])
    registered = await tenant.as_client(
        "UpdatePlugin", pb.UpdatePluginRequest(allow_missing=True, plugin=plugin)
    )
    plugins.append(WebhookPlugin(Handlers([judge]), registered.webhook_secret))
    assert (await tenant.spawn(agent_id="main")).decision == denied("no main")
    again = await tenant.as_client("UpdatePlugin", pb.UpdatePluginRequest(allow_missing=True, plugin=plugin))
    assert again.webhook_secret == registered.webhook_secret
    other = await tenant.as_client(
        "UpdatePlugin",
        pb.UpdatePluginRequest(
            allow_missing=True, plugin=pb.Plugin(name="b", endpoint=plugin.endpoint, hooks=[SPAWN])
        ),
    )
    assert other.webhook_secret not in ("", registered.webhook_secret)


async def answering(body: bytes, status: int = 200, **headers: str) -> web.Response:
    return web.Response(body=body, status=status, headers=headers)


@pytest.mark.parametrize(
    ("status", "body", "headers", "error"),
    [
        (200, b"not json", {}, "malformed answer: not the JSON of the proto message"),
        (200, b'{"decision":{"maybe":{}}}', {}, "malformed answer: not the JSON of the proto message"),
        (200, b"{}", {}, "malformed answer: decision (required)"),
        (200, b"[1]", {}, "malformed answer: not the JSON of the proto message"),
        (200, b" " * 3_000_000, {}, "malformed answer: more than 2097152 bytes"),
        (302, b"", {"Location": "https://127.0.0.1/"}, "the call failed: HTTP status 302"),
        (500, b"secret", {}, "the call failed: HTTP status 500"),
    ],
)
async def test_a_wrong_answer_of_a_webhook_is_a_failure(
    tenant: Tenant,
    site: Callable[[Handle], Awaitable[str]],
    status: int,
    body: bytes,
    headers: dict[str, str],
    error: str,
) -> None:
    called = []

    async def handle(request: web.Request) -> web.Response:
        called.append(request.path)
        return web.Response(body=body, status=status, headers=headers)

    url = await site(handle)
    await tenant.register("a", url, SPAWN, policy=OPEN)
    assert (await tenant.spawn()).decision == ALLOW
    await tenant.register("a", url, SPAWN, policy=CLOSED)
    with refused(Reason.PLUGIN_FAILED):
        await tenant.spawn()
    assert [row.error for row in await tenant.deliveries()] == [error] * 2
    assert called == ["/hooks"] * 2


async def hang(_writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()


async def trickle(writer: asyncio.StreamWriter, text: bytes) -> None:
    for byte in text:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


async def trickle_the_head(writer: asyncio.StreamWriter) -> None:
    await trickle(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


async def trickle_the_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n")
    await trickle(writer, b'{"decision":{"allow": {} }}')


async def never_end_the_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X: " + b"x" * 0x1000 + b"\r\n")
        await writer.drain()


@asynccontextmanager
async def answered_with(
    answer: Callable[[asyncio.StreamWriter], Awaitable[None]], certificate: Path
) -> AsyncIterator[str]:
    """Answer every HTTPS request with these bytes. Give the URL."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        answering = asyncio.ensure_future(answer(writer))
        ended = asyncio.ensure_future(reader.read())
        await asyncio.wait([answering, ended], return_when=asyncio.FIRST_COMPLETED)
        answering.cancel()
        ended.cancel()
        await asyncio.gather(answering, ended, return_exceptions=True)
        writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=server_tls(certificate))
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/hooks"
    finally:
        server.close()


async def test_an_endless_answer_of_a_webhook_is_cut_off(tenant: Tenant, certificate: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def talk() -> int:
        """Write until the connection is closed. Return the number of bytes."""
        written = 0
        with server_tls(certificate).wrap_socket(listener.accept()[0], server_side=True) as link:
            link.recv(65_536)
            link.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            with suppress(OSError):
                while True:
                    link.sendall(b"1000\r\n" + b" " * 0x1000 + b"\r\n")
                    written += 0x1000
        return written

    with listener:
        talking = asyncio.create_task(asyncio.to_thread(talk))
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/hooks"
        await tenant.register("a", url, SPAWN, policy=OPEN, timeout=Duration(seconds=600))
        assert (await tenant.spawn()).decision == ALLOW
        # The TLS shutdown would read for half a minute. Buffers hold some megabytes.
        assert await talking < 64 * 1024 * 1024
    assert [row.error for row in await tenant.deliveries()] == ["malformed answer: more than 2097152 bytes"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (hang, "no answer within 1 s"),
        (hang_up, "the call failed: no connection"),
        (trickle_the_head, "no answer within 1 s"),
        (trickle_the_body, "no answer within 1 s"),
        (never_end_the_head, "malformed answer: more than 2097152 bytes"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_slow_webhook_is_a_failure(
    tenant: Tenant, certificate: Path, answer: Callable[[asyncio.StreamWriter], Awaitable[None]], error: str
) -> None:
    timeout = Duration(seconds=1) if "1 s" in error else Duration(seconds=600)
    async with answered_with(answer, certificate) as url:
        await tenant.register("a", url, SPAWN, policy=OPEN, timeout=timeout)
        assert (await tenant.spawn()).decision == ALLOW
        await tenant.register("a", url, SPAWN, policy=CLOSED, timeout=timeout)
        with refused(Reason.PLUGIN_FAILED):
            await tenant.spawn()
    rows = await tenant.deliveries()
    assert [row.error for row in rows] == [error] * 2


async def test_the_plugins_timeout_overrides_that_of_the_http_client(
    tenant: Tenant, site: Callable[[Handle], Awaitable[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        aiohttp.client, "DEFAULT_TIMEOUT", aiohttp.ClientTimeout(total=0.2)
    )  # The default is five minutes.

    async def handle(_request: web.Request) -> web.Response:
        await asyncio.sleep(0.8)
        return web.Response(body=b'{"decision":{"allow":{}}}')

    await tenant.register("a", await site(handle), SPAWN, policy=OPEN, timeout=Duration(seconds=600))
    await tenant.spawn()
    assert await tenant.log() == [("a", "allow")]


async def test_cancelling_a_call_closes_the_connection_to_the_webhook(
    tenant: Tenant, certificate: Path
) -> None:
    called, gone = asyncio.Event(), asyncio.Event()

    async def think(_writer: asyncio.StreamWriter) -> None:
        called.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            gone.set()
            raise

    async with answered_with(think, certificate) as url:
        await tenant.register("a", url, SPAWN, timeout=Duration(seconds=600))
        call = asyncio.create_task(tenant.spawn())
        await called.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        async with asyncio.timeout(60):
            await gone.wait()


async def test_a_webhook_without_a_trusted_certificate_is_not_called(
    mesh: HookMesh, site: Callable[[Handle], Awaitable[str]]
) -> None:
    called = []

    async def handle(request: web.Request) -> web.Response:
        called.append(request.path)
        return web.Response(body=b'{"decision":{"allow":{}}}')

    tenant = mesh.tenant(await mesh.replica())
    url = await site(handle)
    with refused(Reason.ENDPOINT_NOT_REACHED) as caught:
        await tenant.register("a", url, SPAWN, allow_unreachable=False)
    assert "certificate" in caught.value.message
    await tenant.register("a", url, SPAWN)
    with refused(Reason.PLUGIN_FAILED):
        await tenant.spawn()
    assert called == []


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://127.0.0.1/x",
        "https://[::ffff:10.0.0.1]/x",
        "https://169.254.169.254/latest/meta-data",
        "https://localhost/x",
        "https://0x7f000001/x",
        "https://127.1/x",
        "grpc://2130706433:80",
        "grpc://[fe80::1]:80",
        "grpc://[fec0::1]:80",
    ],
)
async def test_UpdatePlugin__private_networks_are_refused(mesh: HookMesh, endpoint: str) -> None:
    tenant = mesh.tenant(await mesh.replica(allow_private_endpoints=False))
    with refused(Reason.ENDPOINT_NOT_ALLOWED):
        await tenant.register("a", endpoint, SPAWN)
    assert await tenant.plugin_names() == []


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "168.63.129.16",
        "192.0.0.192",
        "100.100.100.200",
        "[fd00:ec2::254]",
        "[fd00:ec2::23]",
        "[fd20:ce::254]",
    ],
)
async def test_UpdatePlugin__metadata_servers_are_refused(mesh: HookMesh, host: str, private: bool) -> None:
    tenant = mesh.tenant(await mesh.replica(allow_private_endpoints=private))
    for endpoint in (f"grpc://{host}:80", f"https://{host}/"):
        with refused(Reason.ENDPOINT_NOT_ALLOWED):
            await tenant.register("a", endpoint, SPAWN)


async def test_UpdatePlugin__unreachable_endpoint(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin(ALLOW)
    with refused(Reason.ENDPOINT_NOT_REACHED):
        await tenant.register("a", DEAD_ENDPOINT, SPAWN, allow_unreachable=False)
    assert await tenant.plugin_names() == []
    await tenant.register("a", plugin.endpoint, SPAWN, allow_unreachable=False)
    assert await tenant.plugin_names() == ["a"]


async def test_PausePlugin__the_plugin_is_not_called_until_resumed(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin(denied("no"))
    await tenant.register("a", plugin.endpoint, SPAWN)
    paused = await tenant.as_client("PausePlugin", pb.PausePluginRequest(name="a"))
    assert paused.plugin.paused
    assert (await tenant.spawn()).decision == ALLOW
    await tenant.register("a", plugin.endpoint, SPAWN, priority=4)
    assert (await tenant.spawn()).decision == ALLOW
    resumed = await tenant.as_client("ResumePlugin", pb.ResumePluginRequest(name="a"))
    assert (resumed.plugin.paused, resumed.plugin.priority) == (False, 4)
    assert (await tenant.spawn()).decision == denied("no")
    with refused(Reason.NOT_FOUND):
        await tenant.as_client("PausePlugin", pb.PausePluginRequest(name="b"))


async def test_a_change_at_one_replica_is_seen_by_the_other(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin(denied("no"))
    elsewhere = tenant.on(await mesh.replica())
    assert (await elsewhere.spawn()).decision == ALLOW
    await tenant.register("a", plugin.endpoint, SPAWN)
    while (await elsewhere.spawn()).decision == ALLOW:
        pass


async def test_TestPlugin__every_hook_is_called_and_nothing_is_stored(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin()

    async def decide(event: Any) -> Any:
        return {"BeforeSpawnEvent": ALLOW, "BeforeAgentFinalizeEvent": revise("x")}.get(event.DESCRIPTOR.name)

    plugin.decide = decide
    await tenant.register("a", plugin.endpoint, SPAWN, FINALIZE, ENDED)
    for _ in range(2):
        tried = await tenant.as_client("TestPlugin", pb.TestPluginRequest(name="a"))
        assert [(row.hook, decision_of(row)) for row in tried.deliveries] == [
            (SPAWN, "allow"),
            (FINALIZE, "revise"),
            (ENDED, "told"),
        ]
    assert len(await tenant.deliveries(session_id="ses_test")) == 6
    with refused(Reason.NOT_FOUND):
        await tenant.as_client("TestPlugin", pb.TestPluginRequest(name="b"))
