"""Plugins that let a person approve a tool call before it is made."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_plugin import block, proceed, require_approval, rewrite

from tests.support.hook.decisions import decision_of
from tests.support.hook.fixtures import (
    CLOSED,
    CONTENT,
    DEAD_ENDPOINT,
    OPEN,
    TOOL_CALL,
    HookMesh,
    Tenant,
    refused,
)
from tests.support.hook.masking import call_tool
from tests.support.hook.scripted_plugin import ScriptedPlugin
from tests.support.hook.webhook_server import https_site, write_certificate

ARGUMENTS = '{"path":"a"}'


async def register_in_order(mesh: HookMesh, tenant: Tenant, **answers: Any) -> dict[str, ScriptedPlugin]:
    """Register a plugin for each answer, the highest priority first."""
    plugins = {name: await mesh.plugin(answer) for name, answer in answers.items()}
    for number, (name, plugin) in enumerate(plugins.items()):
        grants = [CONTENT] if answers[name].HasField("rewrite") else []
        await tenant.register(name, plugin.endpoint, TOOL_CALL, grants=grants, priority=-number)
    return plugins


async def test_DispatchBeforeToolCall__required_approvals_are_joined(mesh: HookMesh, tenant: Tenant) -> None:
    await register_in_order(
        mesh,
        tenant,
        cfo=require_approval("more than 100 EUR"),
        observer=proceed(),
        legal=require_approval("new customer"),
    )
    answer = await call_tool(tenant, ARGUMENTS)
    assert answer.decision == proceed()
    assert answer.approval_reason == "cfo: more than 100 EUR; legal: new customer"
    assert list(answer.decided_by) == ["cfo", "legal"]
    assert await tenant.log() == [
        ("cfo", "require_approval"),
        ("observer", "proceed"),
        ("legal", "require_approval"),
    ]
    rows = await tenant.deliveries(decision="require_approval")
    assert {row.plugin for row in rows} == {"cfo", "legal"}


async def test_DispatchBeforeToolCall__a_call_that_requires_approval_may_be_rewritten(
    mesh: HookMesh, tenant: Tenant
) -> None:
    plugins = await register_in_order(
        mesh,
        tenant,
        first=rewrite({"path": "b"}),
        cfo=require_approval("expensive"),
        last=rewrite({"path": "c"}),
    )
    answer = await call_tool(tenant, ARGUMENTS)
    assert answer.decision == rewrite({"path": "c"})
    assert answer.approval_reason == "cfo: expensive"
    assert list(answer.decided_by) == ["first", "cfo", "last"]
    assert json.loads(plugins["last"].heard[0].arguments_json) == {"path": "b"}


@pytest.mark.parametrize("above", [True, False], ids=["above", "below"])
async def test_DispatchBeforeToolCall__a_blocked_call_requires_no_approval(
    mesh: HookMesh, tenant: Tenant, above: bool
) -> None:
    both = {"cfo": require_approval("expensive"), "guard": block("never")}
    order = sorted(both, reverse=above)
    plugins = await register_in_order(mesh, tenant, **{name: both[name] for name in order})
    answer = await call_tool(tenant, ARGUMENTS)
    assert (answer.decision, list(answer.decided_by)) == (block("never"), ["guard"])
    assert answer.approval_reason == ""
    assert len(plugins["cfo"].heard) == (0 if above else 1)


async def test_DispatchBeforeToolCall__no_approval_is_required_by_default(
    mesh: HookMesh, tenant: Tenant
) -> None:
    await register_in_order(mesh, tenant, a=proceed(), b=rewrite({"path": "b"}))
    answer = await call_tool(tenant, ARGUMENTS)
    assert (answer.approval_reason, list(answer.decided_by)) == ("", ["b"])


async def test_DispatchBeforeToolCall__long_reasons_are_cut_at_a_character(
    mesh: HookMesh, tenant: Tenant
) -> None:
    reason = "é" * 512
    names = ["cfo", "p1", "p2", "p3", "p4"]
    await register_in_order(mesh, tenant, **{name: require_approval(reason) for name in names})
    answer = await call_tool(tenant, ARGUMENTS)
    joined = "; ".join(f"{name}: {reason}" for name in names)
    assert joined.startswith(answer.approval_reason)
    # Byte 4096 is the first half of an é.
    assert len(answer.approval_reason.encode()) == 4095
    assert list(answer.decided_by) == names


@pytest.mark.parametrize(
    ("reason", "rule"),
    [
        ("", "string.min_len"),
        (" \n", "string.pattern"),
        ("a\0b", "string.pattern"),
        ("é" * 513, "string.max_bytes"),
    ],
    ids=["empty", "blank", "NUL", "long"],
)
async def test_DispatchBeforeToolCall__malformed_reason_of_an_approval(
    mesh: HookMesh, tenant: Tenant, reason: str, rule: str
) -> None:
    plugin = await mesh.plugin(require_approval(reason))
    await tenant.register("a", plugin.endpoint, TOOL_CALL, policy=CLOSED)
    with refused(Reason.PLUGIN_FAILED):
        await call_tool(tenant, ARGUMENTS)
    await tenant.register("a", plugin.endpoint, TOOL_CALL, policy=OPEN)
    answer = await call_tool(tenant, ARGUMENTS)
    assert (answer.decision, answer.approval_reason) == (proceed(), "")
    rows = await tenant.deliveries()
    assert [decision_of(row) for row in rows] == ["failed", "failed"]
    expected = f"malformed answer: decision.require_approval.reason ({rule})"
    assert all(row.error.startswith(expected) for row in rows), rows


async def test_DispatchBeforeToolCall__failure_policies_hold_beside_an_approval(
    mesh: HookMesh, tenant: Tenant
) -> None:
    await register_in_order(mesh, tenant, cfo=require_approval("expensive"))
    await tenant.register("dead", DEAD_ENDPOINT, TOOL_CALL, priority=-1, policy=OPEN)
    assert (await call_tool(tenant, ARGUMENTS)).approval_reason == "cfo: expensive"
    await tenant.register("dead", DEAD_ENDPOINT, TOOL_CALL, priority=-1, policy=CLOSED)
    with refused(Reason.PLUGIN_FAILED):
        await call_tool(tenant, ARGUMENTS)


async def test_DispatchBeforeToolCall__webhook_requires_approval(mesh: HookMesh, tmp_path: Path) -> None:
    certificate = write_certificate(tmp_path / "webhook.pem")
    tenant = mesh.tenant(await mesh.replica(webhook_ca_file=certificate))

    async def handle(_request: web.Request) -> web.Response:
        return web.json_response({"decision": {"require_approval": {"reason": "expensive"}}})

    async with https_site(handle, certificate) as url:
        await tenant.register("cfo", url, TOOL_CALL)
        answer = await call_tool(tenant, ARGUMENTS)
    assert (answer.decision, answer.approval_reason) == (proceed(), "cfo: expensive")


async def test_TestPlugin__shows_that_an_approval_is_required(mesh: HookMesh, tenant: Tenant) -> None:
    await register_in_order(mesh, tenant, cfo=require_approval("expensive"))
    tried = await tenant.as_client("TestPlugin", pb.TestPluginRequest(name="cfo"))
    assert [decision_of(row) for row in tried.deliveries] == ["require_approval"]
