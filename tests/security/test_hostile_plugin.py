"""A plugin answers with JSON that is deep, long or full of numbers: its call fails, and nothing else."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web
from spawnmesh.hook.v1 import decision_pb2, event_pb2
from spawnmesh.hook.v1 import run_hook_service_pb2 as run_pb
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.hook.fixtures import (
    ALLOW,
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
from tests.support.hook.webhook_server import https_site, write_certificate

DEEP = 300_000
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
        assert (await tenant.spawn()).decision == ALLOW  # By the failure policy.
        assert (await tenant.spawn()).decision == ALLOW  # By the plugin.
    assert bodies == []
    errors = [row.error for row in reversed(await tenant.deliveries())]
    assert errors == [NOT_JSON, ""]


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
