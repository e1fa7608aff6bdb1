"""Health and reflection need no token. Their callers hold little memory, and not for long."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from spawnmesh_calls.wire_errors import error_from
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.ports import free_ports
from spawnmesh_runtime.health import Health, open_health
from spawnmesh_runtime.interceptors.observe import OBSERVED_PER_SECOND, DeniedCalls
from spawnmesh_runtime.metrics import NO_METRICS
from spawnmesh_runtime.open_services import MAX_OPEN_STREAMS, MAX_REQUEST_BYTES
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.captured_logs import captured_events
from tests.support.security import http2
from tests.support.security.attacked import open_attacked
from tests.support.security.raw_calls import METHODS, allowed_token, bearer, refused
from tests.support.waiting import eventually

MIB = 1024 * 1024
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE = "spawnmesh.session.v1.SessionService"
OTHER = METHODS[f"{SERVICE}.ListSessions"]
PORTS = ["the port of the mesh", "the health port"]


@dataclass
class OpenPort:
    """A port of a process that answers health checks. `name` is that of the service."""

    name: str
    target: str
    health: Health
    channel: grpc.aio.Channel
    events: Sequence[Mapping[str, Any]]


@asynccontextmanager
async def open_port(name: str, keys: Path, denied: DeniedCalls | None = None) -> AsyncIterator[OpenPort]:
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    if name == PORTS[0]:
        async with (
            open_attacked(keys, denied=denied) as attacked,
            grpc.aio.insecure_channel(attacked.target, options=options) as channel,
        ):
            yield OpenPort(
                attacked.name, attacked.target, attacked.process.health, channel, attacked.captured
            )
        return
    (port,) = free_ports(1)
    target = f"127.0.0.1:{port}"
    settings, service = ProcessSettings(health_listen=target), f"attacked-{uuid4().hex}"
    with captured_events() as events:
        async with (
            open_health(service, settings, NO_METRICS.meter, denied or DeniedCalls()) as health,
            grpc.aio.insecure_channel(target, options=options) as channel,
        ):
            yield OpenPort(service, target, health, channel, events)


async def code_of(call: Any, within_seconds: float = 60.0) -> grpc.StatusCode:
    """Return how a stream ends."""
    try:
        async with asyncio.timeout(within_seconds):
            while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
                pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def with_a_long_name(size: int) -> bytes:
    return health_pb2.HealthCheckRequest(service="x" * size).SerializeToString()


def with_an_unknown_field(size: int) -> bytes:
    """Return a request for the unnamed service. Unknown fields stay in a decoded message."""
    return b"\x7a" + with_a_long_name(size)[1:]  # Field 15 in the place of field 1.


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("request_of", [with_a_long_name, with_an_unknown_field])
async def test_no_message_of_a_watch_is_kept(port: str, request_of: Any, keys: Path) -> None:
    async with open_port(port, keys) as opened:
        watches = [opened.channel.unary_stream(WATCH)(request_of(3 * MIB)) for _ in range(10)]
        codes = await asyncio.gather(*map(code_of, watches))
        # gRPC itself refuses it at the health port.
        expected = "INVALID_ARGUMENT" if port == PORTS[0] else "RESOURCE_EXHAUSTED"
        assert {code.name for code in codes} == {expected}
        assert await opened.channel.unary_unary(CHECK)(b"", timeout=60)


async def test_refusal_of_a_long_message_says_why(keys: Path) -> None:
    async with open_port(PORTS[0], keys) as opened:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await opened.channel.unary_unary(CHECK)(with_a_long_name(MAX_REQUEST_BYTES), timeout=60)
        sent = error_from("attacked", caught.value)
        assert sent.reason is Reason.INVALID_REQUEST
        assert sent.violations[0].description == f"has more than {MAX_REQUEST_BYTES} bytes"


@pytest.mark.parametrize("port", PORTS)
async def test_watch_of_a_name_that_does_not_exist_ends_without_an_answer(port: str, keys: Path) -> None:
    """A client that got an answer would watch again at once, without end."""
    async with open_port(port, keys) as opened:
        watch = opened.channel.unary_stream(WATCH)(with_a_long_name(20))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watch.read()
        assert error_from("attacked", caught.value).reason is Reason.NOT_FOUND


@pytest.mark.parametrize(
    ("port", "path"),
    [*product(PORTS, [CHECK, WATCH]), (PORTS[0], REFLECTION)],  # The health port has no reflection.
)
async def test_message_that_does_not_come_ends_the_call_long_before_those_with_a_token(
    port: str, path: str, keys: Path
) -> None:
    async with open_port(port, keys) as opened:
        assert ProcessSettings().message_timeout_seconds == 60.0
        call = opened.channel.stream_stream(path)()
        assert await code_of(call) is grpc.StatusCode.DEADLINE_EXCEEDED


async def first_bytes(
    target: str, path: str, source: str, wanted: bytes, **settings: int
) -> tuple[asyncio.StreamWriter, bytes]:
    """Call with an empty message, from an address of this machine; read until `wanted` comes."""
    host, _, port = target.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    writer.write(http2.PREFACE + http2.settings(**settings) + http2.headers(1, path))
    writer.write(http2.data(1, http2.message_head(0)))
    received = b""
    async with asyncio.timeout(60):
        while wanted not in received and (more := await reader.read(65536)):
            received += more
    return writer, received


@pytest.mark.parametrize("port", PORTS)
async def test_watches_of_one_address_have_a_bound_and_those_of_another_are_served(
    port: str, keys: Path
) -> None:
    answer = http2.message_head(2) + health_pb2.HealthCheckResponse(status=SERVING).SerializeToString()
    async with open_port(port, keys) as opened:
        await opened.health.ready()
        watches = [opened.channel.unary_stream(WATCH)(b"") for _ in range(MAX_OPEN_STREAMS // 2)]
        await asyncio.gather(*(watch.read() for watch in watches))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await opened.channel.unary_stream(WATCH)(b"").read()
        sent = error_from("attacked", caught.value)
        assert sent.reason is Reason.POOL_EXHAUSTED
        assert sent.retry_after_seconds
        assert await opened.channel.unary_unary(CHECK)(b"", timeout=60)
        writer, received = await first_bytes(opened.target, WATCH, "127.0.0.2", answer)
        writer.close()
        assert answer in received
        for watch in watches:
            watch.cancel()

        async def is_served() -> bool:
            try:
                return bool(await opened.channel.unary_stream(WATCH)(b"").read())
            except grpc.aio.AioRpcError:
                return False

        await eventually(is_served)


async def test_watcher_that_reads_nothing_does_not_delay_a_status(keys: Path) -> None:
    """Its answer waits for the window of the stream, and the process must be able to drain."""
    async with open_port(PORTS[1], keys) as opened:
        await opened.health.ready()
        begun = b"application/grpc"  # The headers of the response do not wait.
        writer, received = await first_bytes(opened.target, WATCH, "127.0.0.1", begun, initial_window_size=0)
        assert begun in received
        watch = opened.channel.unary_stream(WATCH)(b"")
        async with asyncio.timeout(60):
            assert health_pb2.HealthCheckResponse.FromString(await watch.read()).status == SERVING
            await opened.health.not_ready()
            assert health_pb2.HealthCheckResponse.FromString(await watch.read()).status == NOT_SERVING
        writer.close()


async def test_client_that_checks_the_health_of_a_service_calls_it(keys: Path) -> None:
    config = {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": SERVICE},
    }
    options = [("grpc.enable_http_proxy", 0), ("grpc.service_config", json.dumps(config))]
    async with (
        open_attacked(keys) as attacked,
        grpc.aio.insecure_channel(attacked.target, options=options) as channel,
    ):
        got = await refused(channel, OTHER, b"", headers=(bearer(allowed_token(keys, OTHER)),))
        assert got.reason is Reason.NOT_FOUND  # As its servicer answers.
        assert attacked.reached == [OTHER.full_name]


async def test_watch_says_that_the_process_drains(keys: Path) -> None:
    async with open_attacked(keys) as attacked, grpc.aio.insecure_channel(attacked.target) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == SERVING
        draining = asyncio.create_task(attacked.server.drain_and_stop(60.0))
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()
        await draining


@pytest.mark.parametrize("port", PORTS)
async def test_flood_of_refused_calls_leaves_a_bounded_number_of_log_events(port: str, keys: Path) -> None:
    denied = DeniedCalls(lambda: 5.0)
    async with open_port(port, keys, denied) as opened:
        check = opened.channel.unary_unary(CHECK)
        calls = [check(with_a_long_name(20), timeout=60) for _ in range(2 * OBSERVED_PER_SECOND)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(end) for end in ends} == {grpc.aio.AioRpcError}

        def logged() -> list[Mapping[str, Any]]:
            return [event for event in opened.events if event.get("service") == opened.name]

        await eventually(lambda: len(logged()) >= OBSERVED_PER_SECOND)
        assert {(event["method"], event["reason"]) for event in logged()} == {(CHECK[1:], "NOT_FOUND")}
        assert not denied.take(), "the calls without a token at all ports share one budget"
    assert len(logged()) == OBSERVED_PER_SECOND
