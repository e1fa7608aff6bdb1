"""A process with a JWKS URL is ready when it has keys, and refuses no caller for lack of keys."""

import asyncio
import contextlib
import json
import signal
import socket
import sys
import threading
import time
from asyncio.subprocess import Process as Running
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as pb_grpc
from spawnmesh_runtime import jwks
from spawnmesh_runtime.jwks import JwksUrl
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import build_server
from spawnmesh_runtime.tokens import TokenVerifier

from tests.support.runtime.plugin import Plugin

SERVE = """
from spawnmesh.hook.v1 import decision_pb2 as decision_pb
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as pb_grpc
from spawnmesh_runtime.process import run_process, start_process
from spawnmesh_runtime.server import build_server, run_until_stopped
from spawnmesh_runtime.settings import ProcessSettings, load_settings

class Plugin(pb_grpc.HookHandlerServiceServicer):
    async def HandleBeforeSpawn(self, request, context):
        return pb.HandleBeforeSpawnResponse(decision=decision_pb.SpawnDecision(allow=decision_pb.Allow()))

async def main():
    async with start_process("transcript", load_settings(ProcessSettings)) as process:
        server = build_server(process)
        pb_grpc.add_HookHandlerServiceServicer_to_server(Plugin(), server)
        await run_until_stopped(process, server)

run_process(main())
"""
PATIENT = """
from spawnmesh_runtime import jwks
jwks._URL_TIMEOUT_SECONDS = 3600.0
"""
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass
class Endpoint:
    body: bytes
    url: str = ""
    status: int = 200
    seconds: float = 0.0
    byte_seconds: float = 0.0
    fetches: int = 0


@pytest.fixture
def endpoint(keys: Any) -> Iterator[Endpoint]:
    endpoint, ended = Endpoint(keys.jwks_file.read_bytes()), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            endpoint.fetches += 1
            ended.wait(endpoint.seconds)
            with contextlib.suppress(ConnectionError):  # The caller may be gone.
                self.send_response(endpoint.status)
                self.end_headers()
                for byte in endpoint.body if endpoint.byte_seconds else ():
                    self.wfile.write(bytes((byte,)))
                    if ended.wait(endpoint.byte_seconds):
                        return
                self.wfile.write(endpoint.body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        endpoint.url = f"http://127.0.0.1:{server.server_port}/jwks.json"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield endpoint
        ended.set()
        server.shutdown()
        thread.join()


@pytest.fixture
async def cold_target(process_named: Callable[..., Process], endpoint: Endpoint) -> AsyncIterator[str]:
    """A server that has not fetched the keys yet."""
    whole = process_named("transcript")
    verifier = TokenVerifier(JwksUrl(endpoint.url))
    server = build_server(Process("transcript", whole.settings, whole.minter, verifier, whole.tracer))
    pb_grpc.add_HookHandlerServiceServicer_to_server(Plugin(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@asynccontextmanager
async def started(endpoint: Endpoint, health_port: int, first: str = "") -> AsyncIterator[Running]:
    environment = {
        "JWKS_URL": endpoint.url,
        "HEALTH_LISTEN": f"127.0.0.1:{health_port}",
        "PYTHONPATH": ":".join(sys.path),
    }
    pipe = asyncio.subprocess.PIPE
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-c", first + SERVE, env=environment, stdout=pipe, stderr=pipe
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


async def said(health_port: int, service: str) -> int | None:
    """Return the health status of the process; None while it does not answer."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{health_port}") as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=60)
        except grpc.aio.AioRpcError:
            return None
    status: int = answer.status
    return status


async def event_called(running: Running, name: str) -> dict[str, Any]:
    assert running.stdout is not None
    async for line in running.stdout:
        event: dict[str, Any] = json.loads(line)
        if event["event"] == name:
            return event
    raise AssertionError(f"it ended without {name}")


@pytest.fixture
def health_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


async def test_calls_that_come_while_the_first_keys_do_are_all_answered(
    cold_target: str, endpoint: Endpoint, ask: Any, keys: Any
) -> None:
    endpoint.seconds = 0.3
    token = keys.minter("hook").service_token("acme")
    answers = await asyncio.gather(*(ask(cold_target, token) for _ in range(20)))
    assert all(answer.decision.HasField("allow") for answer in answers)
    assert endpoint.fetches == 1


async def test_calls_are_answered_as_soon_as_there_are_keys(
    cold_target: str, endpoint: Endpoint, ask: Any, keys: Any
) -> None:
    token = keys.minter("hook").service_token("acme")
    endpoint.status = 503
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(cold_target, token)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    endpoint.status = 200
    assert (await ask(cold_target, token)).decision.HasField("allow")


async def test_calls_share_a_first_fetch_that_fails(
    cold_target: str, endpoint: Endpoint, ask: Any, keys: Any
) -> None:
    endpoint.seconds, endpoint.status = 1.5, 503
    token = keys.minter("hook").service_token("acme")
    answers = await asyncio.gather(*(ask(cold_target, token) for _ in range(20)), return_exceptions=True)
    codes = {answer.code() for answer in answers if isinstance(answer, grpc.aio.AioRpcError)}
    assert (len(answers), codes, endpoint.fetches) == (20, {grpc.StatusCode.UNAVAILABLE}, 1)


async def test_keys_that_come_byte_by_byte_are_given_up(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes within the timeout of a fetch, and all of them take a multiple of it."""
    monkeypatch.setattr(jwks, "_URL_TIMEOUT_SECONDS", 2.0)
    endpoint.byte_seconds = 0.8
    assert len(endpoint.body) * endpoint.byte_seconds > 120
    async with asyncio.timeout(60):
        assert not await TokenVerifier(JwksUrl(endpoint.url)).has_keys()


async def test_call_waits_for_the_first_keys_no_longer_than_it_has(
    cold_target: str, endpoint: Endpoint, ask: Any, keys: Any
) -> None:
    endpoint.seconds = 3600.0
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(cold_target, keys.minter("hook").service_token("acme"), timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_process_is_ready_when_it_has_keys(
    endpoint: Endpoint, health_port: int, ask: Any, keys: Any
) -> None:
    endpoint.status = 503
    async with started(endpoint, health_port) as running, asyncio.timeout(60):
        began = time.monotonic()
        for _ in range(2):
            assert (await event_called(running, "jwks_unreadable"))["source"] == "url"
        assert (await said(health_port, ""), await said(health_port, "live")) == (NOT_SERVING, SERVING)
        endpoint.status = 200
        port = (await event_called(running, "serving"))["port"]
        assert (await said(health_port, ""), await said(health_port, "live")) == (SERVING, SERVING)
        assert 3 <= endpoint.fetches <= 2 + time.monotonic() - began, "it asks every second"
        answer = await ask(f"127.0.0.1:{port}", keys.minter("hook").service_token("acme"))
        assert answer.decision.HasField("allow")


async def test_process_without_keys_yet_ends_at_once_on_a_signal(
    endpoint: Endpoint, health_port: int
) -> None:
    endpoint.seconds = 3600.0
    async with started(endpoint, health_port, PATIENT) as running, asyncio.timeout(60):
        while await said(health_port, "live") != SERVING or not endpoint.fetches:
            await asyncio.sleep(0.05)
        assert await said(health_port, "") == NOT_SERVING
        running.send_signal(signal.SIGTERM)
        await running.wait()
        assert running.returncode == 0
