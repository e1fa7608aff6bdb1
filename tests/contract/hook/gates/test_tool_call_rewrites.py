"""Rewrites of tool calls restore the secrets that the plugin did not see."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from spawnmesh.hook.v1 import decision_pb2 as decisions
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.peers import Peer

from tests.support.hook.dispatching import DEFAULT_ANSWERS
from tests.support.hook.fixtures import (
    CLOSED,
    CONTENT,
    OPEN,
    TOOL_CALL,
    HookMesh,
    Tenant,
    refused,
)
from tests.support.hook.masking import KEY, MARKERS, OTHER_KEY, PEM, TEXT, assert_masked, call_tool

ESCAPED = json.dumps({"b": MARKERS[0]}).replace(
    "$", "\\u0024"
)  # The arguments contain a marker of their own, in a JSON string.


@pytest.fixture
async def tenant(mesh: HookMesh, replica: Peer) -> Tenant:
    return mesh.tenant(replica)


def rewrite(arguments: Any) -> decisions.ToolCallDecision:
    return decisions.ToolCallDecision(rewrite=decisions.Rewrite(arguments_json=json.dumps(arguments)))


async def changing(change: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
    async def decide(event: Any) -> Any:
        return rewrite(change(json.loads(event.arguments_json)))

    return decide


async def test_the_secrets_of_a_rewritten_call_are_restored(
    mesh: HookMesh, replica: Peer, tenant: Tenant
) -> None:
    first, second = await mesh.plugin(), await mesh.plugin()
    first.decide = await changing(lambda given: {**given, "command": f"set -e\n{given['command']}"})
    second.decide = await changing(lambda given: {**given, "nested": f"{given['nested']} # {MARKERS[0]}"})
    await tenant.register("first", first.endpoint, TOOL_CALL, grants=[CONTENT], priority=1)
    await tenant.register("second", second.endpoint, TOOL_CALL, grants=[CONTENT])
    await tenant.prepare(2, mask_secrets=True)
    answer = await call_tool(tenant)
    assert list(answer.decided_by) == ["first", "second"]
    assert json.loads(answer.decision.rewrite.arguments_json) == {
        "command": f"set -e\n{TEXT}",
        "nested": f"{json.dumps({'env': KEY})} # {KEY}",
        "plain": "as it is",
    }
    for event in (first.heard[0], second.heard[0]):
        assert_masked(event.arguments_json, "both are told markers")
    assert "set -e" in second.heard[0].arguments_json


@pytest.mark.parametrize(
    ("given", "change", "error"),
    [
        ({"a": KEY, "b": OTHER_KEY}, dict, "has [$redacted:provider_key], which"),
        ({"a": KEY, "b": MARKERS[0]}, dict, "has [$redacted:provider_key], which"),
        ({"a": KEY}, lambda given: {"a": MARKERS[1]}, "has [$redacted:bearer_token], which"),
        ({"a": KEY}, lambda given: {given["a"]: 1}, "has a marker in a key"),
        ({KEY: 1, "b": {MARKERS[0]: 2}}, dict, "has a marker in a key"),
        ({"a": KEY, "b": ESCAPED}, dict, "has [$redacted:provider_key], which"),
        ({"a": KEY}, lambda given: {"a": given["a"][:-1]}, "has a marker that was changed"),
        ({"a": PEM}, lambda given: {"a": given["a"] * 10_000}, "is larger than 1048576 bytes"),
    ],
)
async def test_a_rewrite_with_ambiguous_markers_is_a_failure(
    mesh: HookMesh, replica: Peer, tenant: Tenant, given: Any, change: Callable[[Any], Any], error: str
) -> None:
    plugin = await mesh.plugin()
    plugin.decide = await changing(change)
    await tenant.register("a", plugin.endpoint, TOOL_CALL, grants=[CONTENT], policy=CLOSED)
    await tenant.prepare(2, mask_secrets=True)
    with refused(Reason.PLUGIN_FAILED):
        await call_tool(tenant, json.dumps(given))
    await tenant.register("a", plugin.endpoint, TOOL_CALL, grants=[CONTENT], policy=OPEN)
    answer = await call_tool(tenant, json.dumps(given))
    assert answer.decision.HasField("proceed"), "the call that the model made, as it made it"
    errors = [row.error for row in await tenant.deliveries()]
    assert len(errors) == 2
    expected = f"malformed answer: decision.rewrite.arguments_json {error}"
    assert all(error.startswith(expected) for error in errors), errors


@pytest.mark.parametrize(
    "value", ["[" * 150 + "]" * 150, "[" + "1," * 510_000 + "1]"], ids=["deep", "many values"]
)
async def test_a_rewrite_that_a_transcript_would_refuse_is_a_failure(
    mesh: HookMesh, replica: Peer, tenant: Tenant, value: str
) -> None:
    plugin = await mesh.plugin(
        decisions.ToolCallDecision(rewrite=decisions.Rewrite(arguments_json=f'{{"value":{value}}}'))
    )
    await tenant.register("a", plugin.endpoint, TOOL_CALL, grants=[CONTENT], policy=CLOSED)
    with refused(Reason.PLUGIN_FAILED):
        await call_tool(tenant)
    [delivery] = await tenant.deliveries()
    assert "not a JSON object within the bounds of depth and size" in delivery.error


async def test_a_rewrite_may_omit_a_secret(mesh: HookMesh, replica: Peer, tenant: Tenant) -> None:
    plugin = await mesh.plugin(rewrite({"a": "nothing"}))
    await tenant.register("a", plugin.endpoint, TOOL_CALL, grants=[CONTENT])
    await tenant.prepare(2, mask_secrets=True)
    answer = await call_tool(tenant, json.dumps({"a": KEY, "b": OTHER_KEY}))
    assert answer.decision.rewrite.arguments_json == '{"a": "nothing"}'


async def test_markers_are_plain_text_while_secrets_are_not_masked(
    mesh: HookMesh, replica: Peer, tenant: Tenant
) -> None:
    plugin = await mesh.plugin(rewrite({"a": MARKERS[0]}))
    await tenant.register("a", plugin.endpoint, TOOL_CALL, grants=[CONTENT])
    answer = await call_tool(tenant)
    assert json.loads(answer.decision.rewrite.arguments_json) == {"a": MARKERS[0]}


async def test_arguments_that_are_not_json_are_refused_while_secrets_are_masked(
    mesh: HookMesh, replica: Peer, tenant: Tenant
) -> None:
    plugin = await mesh.plugin(DEFAULT_ANSWERS[TOOL_CALL])
    await tenant.register("a", plugin.endpoint, TOOL_CALL, grants=[CONTENT])
    await tenant.prepare(2, mask_secrets=True)
    with refused(Reason.INVALID_REQUEST):
        await call_tool(tenant, f'{{"a": "{KEY}"')
    assert plugin.heard == []
    await call_tool(tenant, "")
    assert plugin.heard[0].arguments_json == ""
