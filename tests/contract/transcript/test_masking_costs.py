"""Masking one text does not block the process, whatever the text contains."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.hook.dispatching import DEFAULT_ANSWERS
from tests.support.hook.fixtures import CONTENT, TOOL_CALL, HookMesh, open_mesh
from tests.support.hook.masking import call_tool
from tests.support.transcript.fixtures import Session, call_block

# Each takes far less than a second; with quadratic masking each took far more than this limit.
SECONDS = 8.0

LONG: dict[str, Any] = {
    "spaces": {"note": "sk-", "text": ("A" * 60 + "\n") * 3 + " " * 80_000 + "!"},
    "key": {"sk-" + "k" * 250_000: ["a"] * 4_000},
}


@pytest.fixture
async def mesh(databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[HookMesh]:
    async with open_mesh(databases["hook"], keys) as opened:
        yield opened


@pytest.mark.parametrize("case", list(LONG))
async def test_AppendEntries__masking_takes_linear_time(session: Session, case: str) -> None:
    await session.prepare_tenant(1, mask_secrets=True)
    claim = await session.acquire(1)
    block = call_block("c", json.dumps({"id": "c", "name": "exec", "input": LONG[case]}), "exec")
    message = content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[block])
    begin = monotonic_seconds()
    await session.append([entry_pb2.EntryBody(message=message)], claim=claim)
    assert monotonic_seconds() - begin < SECONDS


@pytest.mark.parametrize("case", list(LONG))
async def test_DispatchBeforeToolCall__masking_takes_linear_time(mesh: HookMesh, case: str) -> None:
    tenant, plugin = mesh.tenant(await mesh.replica()), await mesh.plugin(DEFAULT_ANSWERS[TOOL_CALL])
    await tenant.register("one", plugin.endpoint, TOOL_CALL, grants=[CONTENT])
    await tenant.prepare(2, mask_secrets=True)
    begin = monotonic_seconds()
    await call_tool(tenant, json.dumps(LONG[case]))
    assert monotonic_seconds() - begin < SECONDS
    assert [json.loads(one.arguments_json) for one in plugin.heard] == [LONG[case]]


async def test_DispatchBeforeToolCall__others_are_served_while_a_long_text_is_masked(mesh: HookMesh) -> None:
    tenant, plugin = mesh.tenant(await mesh.replica()), await mesh.plugin(DEFAULT_ANSWERS[TOOL_CALL])
    await tenant.register("one", plugin.endpoint, TOOL_CALL, grants=[CONTENT])
    await tenant.prepare(2, mask_secrets=True)
    gaps: list[float] = []

    async def measure_delays() -> None:
        while True:
            before = monotonic_seconds()
            await asyncio.sleep(0.01)
            gaps.append(monotonic_seconds() - before)

    arguments = json.dumps({"note": "sk-", "list": ["\\"] * 200_000})
    looking = asyncio.create_task(measure_delays())
    begin = monotonic_seconds()
    await call_tool(tenant, arguments)
    seconds = monotonic_seconds() - begin
    looking.cancel()
    assert [one.arguments_json for one in plugin.heard] == [arguments]
    assert max(gaps) < max(2.0, seconds / 2)
