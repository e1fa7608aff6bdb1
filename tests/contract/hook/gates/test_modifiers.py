"""The hooks that modify a model, a prompt, a tool call or a delivery target."""

import json
from typing import Any

import pytest
from spawnmesh.hook.v1 import decision_pb2 as decisions
from spawnmesh.hook.v1 import delivery_target_pb2 as targets
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1 import run_hook_service_pb2 as run_pb
from spawnmesh.hook.v1.end_outcome_pb2 import END_OUTCOME_FAILED
from spawnmesh_core.reasons import Reason

from tests.support.hook.decisions import decision_of
from tests.support.hook.fixtures import (
    CONTENT,
    DEAD_ENDPOINT,
    ENDED,
    MODEL,
    PROMPT,
    TARGET,
    TOOL_CALL,
    HookMesh,
    Tenant,
    refused,
)

RUN: dict[str, Any] = {"session_id": "ses_1", "run_id": "run_1", "agent_id": "main"}
PROCEED = decisions.ToolCallDecision(proceed=decisions.Proceed())


async def ask_model(tenant: Tenant) -> run_pb.DispatchBeforeModelResolveResponse:
    event = events.BeforeModelResolveEvent(**RUN, models=["big"])
    answer: run_pb.DispatchBeforeModelResolveResponse = await tenant.as_run(
        "DispatchBeforeModelResolve", run_pb.DispatchBeforeModelResolveRequest(event=event)
    )
    return answer


async def ask_prompt(tenant: Tenant) -> run_pb.DispatchBeforePromptBuildResponse:
    event = events.BeforePromptBuildEvent(**RUN, system_prompt="be good", tool_names=["read", "write"])
    answer: run_pb.DispatchBeforePromptBuildResponse = await tenant.as_run(
        "DispatchBeforePromptBuild", run_pb.DispatchBeforePromptBuildRequest(event=event)
    )
    return answer


async def ask_tool_call(tenant: Tenant, **facts: Any) -> run_pb.DispatchBeforeToolCallResponse:
    event = events.BeforeToolCallEvent(
        **{**RUN, "tool_name": "read", "arguments_json": '{"path":"a"}', **facts}
    )
    answer: run_pb.DispatchBeforeToolCallResponse = await tenant.as_run(
        "DispatchBeforeToolCall", run_pb.DispatchBeforeToolCallRequest(event=event)
    )
    return answer


def rewrite(**arguments: Any) -> decisions.ToolCallDecision:
    return decisions.ToolCallDecision(rewrite=decisions.Rewrite(arguments_json=json.dumps(arguments)))


def block(reason: str) -> decisions.ToolCallDecision:
    return decisions.ToolCallDecision(block=decisions.Block(reason=reason))


async def test_without_plugins_nothing_changes(tenant: Tenant) -> None:
    assert await ask_model(tenant) == run_pb.DispatchBeforeModelResolveResponse(
        decision=decisions.ModelDecision()
    )
    assert await ask_prompt(tenant) == run_pb.DispatchBeforePromptBuildResponse(
        decision=decisions.PromptDecision()
    )
    assert await ask_tool_call(tenant) == run_pb.DispatchBeforeToolCallResponse(decision=PROCEED)
    assert await tenant.deliveries() == []


async def test_ListActiveHooks__paused_plugins_do_not_count(mesh: HookMesh, tenant: Tenant) -> None:
    await tenant.register("a", DEAD_ENDPOINT, TOOL_CALL, ENDED)
    await tenant.register("b", DEAD_ENDPOINT, MODEL)
    await tenant.as_client("PausePlugin", pb.PausePluginRequest(name="b"))
    answer = await tenant.as_run("ListActiveHooks", run_pb.ListActiveHooksRequest())
    assert list(answer.hooks) == [ENDED, TOOL_CALL]


async def test_DispatchBeforeModelResolve__the_first_named_model_wins(mesh: HookMesh, tenant: Tenant) -> None:
    answers = [decisions.ModelDecision(model=model) for model in ("", "small", "smaller")]
    nobody, first, second = [await mesh.plugin(answer) for answer in answers]
    for priority, (name, plugin) in enumerate({"second": second, "first": first, "nobody": nobody}.items()):
        await tenant.register(name, plugin.endpoint, MODEL, priority=priority)
    answer = await ask_model(tenant)
    assert (answer.decision.model, answer.decided_by) == ("small", "first")
    assert second.heard == []
    assert await tenant.log() == [("nobody", "continue"), ("first", "chosen")]


async def test_DispatchDeliveryTarget__the_first_named_target_wins(mesh: HookMesh, tenant: Tenant) -> None:
    named = [targets.DeliveryTargetDecision(target=target) for target in ("", "chat:7", "mail:x")]
    nobody, first, second = [await mesh.plugin(target) for target in named]
    for priority, (name, plugin) in enumerate({"second": second, "first": first, "nobody": nobody}.items()):
        await tenant.register(name, plugin.endpoint, TARGET, priority=priority)
    event = targets.DeliveryTargetEvent(
        session_id="ses_1", run_id="run_1", parent_session_id="ses_0", outcome=END_OUTCOME_FAILED
    )
    answer = await tenant.as_session(
        "DispatchDeliveryTarget", targets.DispatchDeliveryTargetRequest(event=event)
    )
    assert (answer.decision.target, answer.decided_by) == ("chat:7", "first")
    assert (nobody.heard, first.heard, second.heard) == ([event], [event], [])
    assert await tenant.log() == [("nobody", "continue"), ("first", "chosen")]
    tried = await tenant.as_client("TestPlugin", pb.TestPluginRequest(name="first"))
    assert [decision_of(row) for row in tried.deliveries] == ["chosen"]


async def test_DispatchDeliveryTarget__only_the_session_service_may_call(tenant: Tenant) -> None:
    event = targets.DeliveryTargetEvent(session_id="ses_1", run_id="run_1", outcome=END_OUTCOME_FAILED)
    with refused(Reason.CALLER_NOT_ALLOWED):
        await tenant.as_client("DispatchDeliveryTarget", targets.DispatchDeliveryTargetRequest(event=event))


async def test_DispatchBeforePromptBuild__merged_in_order(mesh: HookMesh, tenant: Tenant) -> None:
    high = await mesh.plugin(
        decisions.PromptDecision(context="one", tools=decisions.ToolList(names=["read", "x"]))
    )
    low = await mesh.plugin(
        decisions.PromptDecision(
            system_prompt="s", context="two", tools=decisions.ToolList(names=["write", "read"])
        )
    )
    await tenant.register("high", high.endpoint, PROMPT, priority=1, grants=[CONTENT])
    await tenant.register("low", low.endpoint, PROMPT)
    answer = await ask_prompt(tenant)
    merged = decisions.PromptDecision(
        system_prompt="s", context="one\n\ntwo", tools=decisions.ToolList(names=["read"])
    )
    assert (answer.decision, list(answer.decided_by)) == (merged, ["high", "low"])
    assert [plugin.heard[0].system_prompt for plugin in (high, low)] == ["be good", ""]


async def test_DispatchBeforeToolCall__each_plugin_sees_earlier_rewrites(
    mesh: HookMesh, tenant: Tenant
) -> None:
    first, second = await mesh.plugin(rewrite(path="b")), await mesh.plugin(rewrite(path="c"))
    await tenant.register("second", second.endpoint, TOOL_CALL, grants=[CONTENT])
    await tenant.register("first", first.endpoint, TOOL_CALL, grants=[CONTENT], priority=1)
    answer = await ask_tool_call(tenant)
    assert (answer.decision, list(answer.decided_by)) == (rewrite(path="c"), ["first", "second"])
    assert json.loads(second.heard[0].arguments_json) == {"path": "b"}


async def test_DispatchBeforeToolCall__plugins_below_a_block_are_not_called(
    mesh: HookMesh, tenant: Tenant
) -> None:
    changes, blocks, unasked = (
        await mesh.plugin(rewrite(path="b")),
        await mesh.plugin(block("no")),
        await mesh.plugin(),
    )
    for priority, (name, plugin) in enumerate(
        {"unasked": unasked, "blocks": blocks, "changes": changes}.items()
    ):
        await tenant.register(name, plugin.endpoint, TOOL_CALL, grants=[CONTENT], priority=priority)
    answer = await ask_tool_call(tenant)
    assert (answer.decision, list(answer.decided_by)) == (block("no"), ["blocks"])
    assert unasked.heard == []


@pytest.mark.parametrize(
    "decision",
    [
        decisions.ToolCallDecision(),
        decisions.ToolCallDecision(rewrite=decisions.Rewrite(arguments_json="[1]")),
        block(" "),
    ],
)
async def test_DispatchBeforeToolCall__malformed_answer(
    mesh: HookMesh, tenant: Tenant, decision: decisions.ToolCallDecision
) -> None:
    plugin = await mesh.plugin(decision)
    await tenant.register("a", plugin.endpoint, TOOL_CALL, grants=[CONTENT])
    with refused(Reason.PLUGIN_FAILED):
        await ask_tool_call(tenant)


async def test_DispatchBeforeToolCall__a_rewrite_needs_content_access(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin(rewrite(path="b"))
    await tenant.register("a", plugin.endpoint, TOOL_CALL)
    with refused(Reason.PLUGIN_FAILED):
        await ask_tool_call(tenant)
    assert plugin.heard[0].arguments_json == ""


async def test_UpdatePlugin__prompts_without_the_grant(tenant: Tenant) -> None:
    plugin = pb.Plugin(name="a", endpoint=DEAD_ENDPOINT, hooks=[PROMPT])
    with refused(Reason.GRANT_MISSING) as caught:
        await tenant.as_client(
            "UpdatePlugin", pb.UpdatePluginRequest(allow_missing=True, plugin=plugin, allow_unreachable=True)
        )
    assert caught.value.facts == {"plugin": "a", "hook": "BEFORE_PROMPT_BUILD", "grant": "PROMPT_INJECTION"}


@pytest.mark.parametrize("other", [{"session_id": "ses_2"}, {"run_id": "run_2"}])
async def test_a_run_dispatches_for_itself_only(tenant: Tenant, other: dict[str, str]) -> None:
    with refused(Reason.NOT_FOUND):
        await ask_tool_call(tenant, **other)
