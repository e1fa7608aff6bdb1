"""A plugin answers with JSON or a message that is deep, long or empty: its call fails, and nothing else."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from aiohttp import web
from spawnmesh.hook.v1 import decision_pb2, event_pb2
from spawnmesh.hook.v1 import hook_handler_service_pb2 as handler_pb
from spawnmesh.hook.v1 import run_hook_service_pb2 as run_pb
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.hook.fixtures import (
    CLOSED,
    CONTENT,
    OPEN,
    SPAWN,
    TOOL_CALL,
    HookMesh,
    Tenant,
    open_mesh,
    refused,
)
from tests.support.hook.scripted_plugin import ALLOW
from tests.support.hook.webhook_server import https_site, raw_https_site, write_certificate

DEEP = 300_000
TOO_LARGE = "malformed answer: more than 2097152 bytes"
NOT_JSON = "malformed answer: not the JSON of the proto message"
ANSWERS = {
    "lists that do not end": b"[" * DEEP,
    "objects that do not end": b'{"decision":' * (DEEP // 3),
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "a deep decision": b'{"decision":{"allow":' + b"[" * DEEP + b"]" * DEEP + b"}}",
    "numbers": b'{"decision":[' + b"0," * DEEP + b"0]}",
    "a long number": b'{"decision":' + b"9" * DEEP + b"}",
    "a large number": b'{"decision":{"allow":1e999999999}}',
    "many names": json.dumps({f"n{number}": 0 for number in range(50_000)}).encode(),
    "one name again and again": b"{" + b'"decision":{"allow":{}},' * 1_000 + b'"decision":{"allow":{}}}',
    "bytes that are no text": b"\xff\xfe" * DEEP,
}
ALLOWED = b'{"decision":{"allow":{}}}'
HINT = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
RAW_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(ALLOWED), ALLOWED)
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNK = b"%x;%%b\r\n%b\r\n0\r\n" % (len(ALLOWED), ALLOWED)
RAW_ANSWERS = {
    "lines before the answer": b"HTTP/1.1 100\r\n\r\n" * 4_000 + RAW_ANSWER,
    "lines that do not end": b"HTTP/1.1 100\r\n\r\n" * 400_000,
    "hints with large headers": (b"HTTP/1.1 103\r\n" + b"A: %b\r\n" % (b"a" * 8_000) * 5 + b"\r\n") * 2
    + RAW_ANSWER,
    "large headers": RAW_ANSWER.replace(
        b"\r\n\r\n", b"\r\n" + b"A: %b\r\n" % (b"a" * 8_000) * 9 + b"\r\n", 1
    ),
    "a long frame": _CHUNKED + _CHUNK % (b"a" * 3_000_000) + b"\r\n",
}
"""Answers of a webhook that are within every bound of their bodies."""
SLOW = json.dumps({"decision": {f"n{number}": 0 for number in range(150_000)}}).encode()
"""Less than 2 MiB of it take more than a second to read."""

_EMPTY_DECISION = b"\x0a\x00"
_UNKNOWN_FIELD = b"\xc2\xa9\x07\x00"
GRPC_ANSWERS = {
    "no message": (b"\xff\xff", "malformed answer: not a message of the proto"),
    "too many bytes": (b"\x0a\x02\x0a\x00" * 600_000, TOO_LARGE),
    "16 MiB of unknown fields": (_UNKNOWN_FIELD * (4 * 1024**2 - 64), TOO_LARGE),
    "no decision, a million times": (
        _EMPTY_DECISION * 1_000_000,
        "malformed answer: decision.decision (required)",
    ),
}


@pytest.fixture(scope="module")
async def mesh(databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[HookMesh]:
    async with open_mesh(databases["hook"], keys) as opened:
        yield opened


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls") / "webhook.pem")


@pytest.fixture
async def tenant(mesh: HookMesh, certificate: Path) -> Tenant:
    return mesh.tenant(await mesh.replica(webhook_ca_file=certificate))


@pytest.mark.parametrize("what", ANSWERS)
async def test_webhook_that_floods_its_answer_fails_alone(
    tenant: Tenant, certificate: Path, what: str
) -> None:
    bodies = [ANSWERS[what], b'{"decision":{"allow":{}}}']

    async def handle(_asked: web.Request) -> web.Response:
        return web.Response(body=bodies.pop(0))

    async with AsyncExitStack() as exits:
        url = await exits.enter_async_context(https_site(handle, certificate))
        await tenant.register("gate", url, SPAWN, policy=OPEN)
        assert (await tenant.spawn(timeout_seconds=90)).decision == ALLOW  # By the failure policy.
        assert (await tenant.spawn(timeout_seconds=90)).decision == ALLOW  # By the plugin.
    assert bodies == []
    errors = [row.error for row in reversed(await tenant.deliveries())]
    assert errors == [NOT_JSON, ""]


@pytest.mark.parametrize("what", RAW_ANSWERS)
async def test_webhook_that_floods_around_its_answer_fails_alone(
    tenant: Tenant, certificate: Path, what: str
) -> None:
    answers = [RAW_ANSWERS[what], HINT * 3 + RAW_ANSWER]
    async with raw_https_site(certificate, *answers) as url:
        await tenant.register("gate", url, SPAWN, policy=OPEN)
        assert (await tenant.spawn(timeout_seconds=90)).decision == ALLOW  # By the failure policy.
        assert (await tenant.spawn(timeout_seconds=90)).decision == ALLOW  # By the plugin.
    assert [row.error for row in reversed(await tenant.deliveries())] == [TOO_LARGE, ""]


async def test_answer_that_takes_long_to_read_is_read_by_a_worker_which_is_ended(
    mesh: HookMesh, certificate: Path
) -> None:
    tenant = mesh.tenant(await mesh.replica(webhook_ca_file=certificate, cpu_work_seconds=0.1))

    async def handle(_asked: web.Request) -> web.Response:
        return web.Response(body=SLOW)

    async with AsyncExitStack() as exits:
        url = await exits.enter_async_context(https_site(handle, certificate))
        await tenant.register("gate", url, SPAWN, policy=OPEN)
        assert (await tenant.spawn(timeout_seconds=90)).decision == ALLOW
    [error] = [row.error for row in await tenant.deliveries()]
    assert error == "malformed answer: it takes too long to read"


@asynccontextmanager
async def raw_plugin(
    *answers: bytes, compression: grpc.Compression = grpc.Compression.NoCompression
) -> AsyncIterator[str]:
    """Serve a plugin that answers with these bytes, and yield its endpoint."""
    left = list(answers)

    async def answer(_request: bytes, _context: object) -> bytes:
        return left.pop(0)

    options = [("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(options=options, compression=compression)
    handlers = {"HandleBeforeSpawn": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("spawnmesh.hook.v1.HookHandlerService", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        await server.stop(None)
    assert left == []


@pytest.mark.parametrize("what", GRPC_ANSWERS)
async def test_grpc_plugin_that_floods_its_answer_fails_alone(tenant: Tenant, what: str) -> None:
    answer, error = GRPC_ANSWERS[what]
    allowed = handler_pb.HandleBeforeSpawnResponse(decision=ALLOW).SerializeToString()
    async with raw_plugin(answer, allowed) as endpoint:
        await tenant.register("gate", endpoint, SPAWN, policy=OPEN)
        assert (await tenant.spawn(timeout_seconds=90)).decision == ALLOW  # By the failure policy.
        assert (await tenant.spawn(timeout_seconds=90)).decision == ALLOW  # By the plugin.
    assert [row.error for row in reversed(await tenant.deliveries())] == [error, ""]


async def test_compressed_bomb_of_a_grpc_plugin_is_an_answer_that_is_too_large(tenant: Tenant) -> None:
    async with raw_plugin(bytes(64 * 1024**2), compression=grpc.Compression.Gzip) as endpoint:
        await tenant.register("gate", endpoint, SPAWN, policy=OPEN)
        assert (await tenant.spawn(timeout_seconds=90)).decision == ALLOW
    assert [row.error for row in await tenant.deliveries()] == [TOO_LARGE]


@pytest.mark.parametrize(
    "arguments",
    ["[" * 100_000, '{"a":' * 50_000 + "1" + "}" * 50_000, "9" * 100_000, f"[{'0,' * 200_000}0]", "{}{}", ""],
    ids=["endless", "deep", "number", "numbers", "two", "none"],
)
async def test_plugin_that_rewrites_a_call_into_no_arguments_fails(
    mesh: HookMesh, tenant: Tenant, arguments: str
) -> None:
    rewrite = decision_pb2.ToolCallDecision(rewrite=decision_pb2.Rewrite(arguments_json=arguments))
    plugin = await mesh.plugin(rewrite)
    await tenant.register("gate", plugin.endpoint, TOOL_CALL, policy=CLOSED, grants=[CONTENT])
    event = event_pb2.BeforeToolCallEvent(
        session_id="ses_1", run_id="run_1", tool_name="read_file", tool_call_id="c", arguments_json="{}"
    )
    with refused(Reason.PLUGIN_FAILED):
        await tenant.as_run("DispatchBeforeToolCall", run_pb.DispatchBeforeToolCallRequest(event=event))
    plugin.says(decision_pb2.ToolCallDecision(proceed=decision_pb2.Proceed()))
    answer = await tenant.as_run("DispatchBeforeToolCall", run_pb.DispatchBeforeToolCallRequest(event=event))
    assert answer.decision.HasField("proceed")
