"""Masking one text does not block the process, whatever the text contains."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from time import process_time, thread_time
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.cpu_workers import worker_seconds
from tests.support.hook.dispatching import DEFAULT_ANSWERS
from tests.support.hook.fixtures import CONTENT, TOOL_CALL, HookMesh, open_mesh
from tests.support.hook.masking import call_tool
from tests.support.transcript.bodies import call_block
from tests.support.transcript.fixtures import Session

GROWTH = 8
"""The large input is so many times as long as the small one."""

_CALLS = 3

COST_LIMIT = 3 * GROWTH
"""The large input may cost so many times as much; quadratic masking costs GROWTH ** 2 times."""

INPUTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "spaces": lambda size: {"note": "sk-", "text": ("A" * 60 + "\n") * 3 + " " * (10_000 * size) + "!"},
    "key": lambda size: {"sk-" + "k" * (30_000 * size): ["a"] * (500 * size)},
}


@pytest.fixture
async def mesh(databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[HookMesh]:
    async with open_mesh(databases["hook"], keys) as opened:
        yield opened


async def _cost(call: Callable[[], Awaitable[Any]]) -> float:
    """Return the processor time of this process and its workers during a call, in seconds: the least
    of several, since both may do other work meanwhile.
    """
    costs = []
    for _ in range(_CALLS):
        begin = process_time() + worker_seconds()
        await call()
        costs.append(process_time() + worker_seconds() - begin)
    return min(costs)


@pytest.mark.parametrize("case", list(INPUTS))
async def test_AppendEntries__masking_takes_linear_time(session: Session, case: str) -> None:
    await session.prepare_tenant(1, mask_secrets=True)
    claim = await session.acquire(1)

    async def append(size: int) -> None:
        block = call_block("c", json.dumps({"id": "c", "name": "exec", "input": INPUTS[case](size)}), "exec")
        message = content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[block])
        await session.append([entry_pb2.EntryBody(message=message)], claim=claim)

    for size in (1, GROWTH):  # Later calls find everything loaded, and a worker process.
        await append(size)
    small = await _cost(lambda: append(1))
    assert await _cost(lambda: append(GROWTH)) < COST_LIMIT * small


@pytest.mark.parametrize("case", list(INPUTS))
async def test_DispatchBeforeToolCall__masking_takes_linear_time(mesh: HookMesh, case: str) -> None:
    tenant, plugin = mesh.tenant(await mesh.replica()), await mesh.plugin(DEFAULT_ANSWERS[TOOL_CALL])
    await tenant.register("one", plugin.endpoint, TOOL_CALL, grants=[CONTENT])
    await tenant.prepare(2, mask_secrets=True)
    small, large = INPUTS[case](1), INPUTS[case](GROWTH)
    for content in (small, large):  # Later calls find everything loaded, and a worker process.
        await call_tool(tenant, json.dumps(content))
    cost = await _cost(lambda: call_tool(tenant, json.dumps(small)))
    assert await _cost(lambda: call_tool(tenant, json.dumps(large))) < COST_LIMIT * cost
    heard = [json.loads(one.arguments_json) for one in plugin.heard]
    assert heard == [small, large, *[small] * _CALLS, *[large] * _CALLS]


async def test_DispatchBeforeToolCall__others_are_served_while_a_long_text_is_masked(mesh: HookMesh) -> None:
    """Masking runs outside the thread of the event loop, which serves the other calls."""
    tenant, plugin = mesh.tenant(await mesh.replica()), await mesh.plugin(DEFAULT_ANSWERS[TOOL_CALL])
    await tenant.register("one", plugin.endpoint, TOOL_CALL, grants=[CONTENT])
    await tenant.prepare(2, mask_secrets=True)
    arguments = json.dumps({"note": "sk-", "list": ["\\"] * 100_000})
    longest_turn = 0.0

    async def measure_turns() -> None:
        nonlocal longest_turn
        while True:
            before = thread_time()
            await asyncio.sleep(0.01)
            longest_turn = max(longest_turn, thread_time() - before)

    looking = asyncio.create_task(measure_turns())
    cost = await _cost(lambda: call_tool(tenant, arguments))
    looking.cancel()
    assert [one.arguments_json for one in plugin.heard] == [arguments] * _CALLS
    assert longest_turn < cost / 2
