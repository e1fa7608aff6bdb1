"""A run waits for a plugin that is CLOSED as long as the plugin's `max_wait`."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1 import decision_pb2 as decisions
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_core.errors import MeshError, is_transient
from spawnmesh_core.reasons import Reason

from tests.support.hook.dispatching import DEFAULT_ANSWERS, dispatch
from tests.support.hook.fixtures import (
    CLOSED,
    DEAD_ENDPOINT,
    ENDED,
    FINALIZE,
    MODEL,
    OPEN,
    PROMPT,
    SPAWN,
    TOOL_CALL,
    HookMesh,
    Tenant,
    refused,
)
from tests.support.hook.scripted_plugin import CONTINUE, ScriptedPlugin

# The first call without an answer begins the wait, and every later one comes after its end.
MOMENT = Duration(nanos=1_000_000)
LONG = Duration(seconds=86_400)
AWAITED = [FINALIZE, MODEL, PROMPT, TOOL_CALL]


async def failure_of(tenant: Tenant, hook: Any = FINALIZE) -> MeshError:
    with refused(Reason.PLUGIN_FAILED) as caught:
        await dispatch(tenant, hook)
    return caught.value


async def register(tenant: Tenant, *hooks: Any, endpoint: str = DEAD_ENDPOINT, **more: Any) -> pb.Plugin:
    return await tenant.register("gate", endpoint, *hooks, **{"policy": CLOSED, "max_wait": MOMENT, **more})


@pytest.mark.parametrize("hook", AWAITED, ids=events.HookKind.Name)
async def test_a_run_waits_for_the_limit_and_no_longer_at_another_replica_too(
    mesh: HookMesh, tenant: Tenant, hook: Any
) -> None:
    await register(tenant, hook)
    first = await failure_of(tenant, hook)
    assert (is_transient(first), first.retry_after_seconds, "max_wait_seconds" in first.facts) == (
        True,
        1.0,
        False,
    )
    final = await failure_of(tenant.on(await mesh.replica()), hook)
    assert (is_transient(final), final.retry_after_seconds) == (False, None)
    name = events.HookKind.Name(hook).removeprefix("HOOK_KIND_")
    assert final.facts == {
        "plugin": "gate",
        "hook": name,
        "is_transient": "false",
        "max_wait_seconds": "0.001",
    }
    assert f"plugin gate gave no valid answer to {name} within its max_wait of 0.001 s" in final.message


@pytest.mark.parametrize("more", [{"max_wait": LONG}, {"max_wait": None}], ids=["long", "none"])
async def test_a_run_waits_on_before_the_limit(tenant: Tenant, more: dict[str, Any]) -> None:
    await register(tenant, FINALIZE, **more)
    assert [is_transient(await failure_of(tenant)) for _ in range(2)] == [True, True]


def scripted(plugin: ScriptedPlugin, *answers: decisions.FinalizeDecision | None) -> None:
    """Give the answers in turn. None stands for a plugin that is about to stop."""
    left = list(answers)

    async def decide(_event: Any) -> decisions.FinalizeDecision:
        answer = left.pop(0)
        if answer is None:
            raise MeshError(Reason.DRAINING, "the plugin stops")
        return answer

    plugin.decide = decide


async def test_an_answer_after_the_limit_counts_and_ends_the_wait(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin()
    scripted(plugin, None, CONTINUE, None, None)
    await register(tenant, FINALIZE, endpoint=plugin.endpoint)
    assert is_transient(await failure_of(tenant))
    assert (await dispatch(tenant, FINALIZE)).decision == CONTINUE
    assert [is_transient(await failure_of(tenant)) for _ in range(2)] == [True, False]


async def test_a_malformed_answer_ends_the_wait_too(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin()
    scripted(plugin, None, decisions.FinalizeDecision(), None)
    await register(tenant, FINALIZE, endpoint=plugin.endpoint)
    failures = [await failure_of(tenant) for _ in range(3)]
    assert [is_transient(failure) for failure in failures] == [True, False, True]
    assert "max_wait_seconds" not in failures[1].facts


async def test_a_change_and_a_resume_begin_the_wait_anew(tenant: Tenant) -> None:
    await register(tenant, FINALIZE)
    assert is_transient(await failure_of(tenant))
    await register(tenant, FINALIZE, priority=1)
    assert is_transient(await failure_of(tenant))
    await tenant.as_client("PausePlugin", pb.PausePluginRequest(name="gate"))
    await tenant.as_client("ResumePlugin", pb.ResumePluginRequest(name="gate"))
    assert is_transient(await failure_of(tenant))
    assert not is_transient(await failure_of(tenant))


async def test_each_run_has_a_wait_of_its_own(tenant: Tenant) -> None:
    await register(tenant, FINALIZE)
    for run_id in ("run_1", "run_2"):
        with refused(Reason.PLUGIN_FAILED) as caught:
            await tenant.draft("k", run_id=run_id)
        assert is_transient(caught.value)


@pytest.mark.parametrize("hook", sorted(set(DEFAULT_ANSWERS) - set(AWAITED)), ids=events.HookKind.Name)
async def test_where_no_run_waits_the_limit_has_no_effect(tenant: Tenant, hook: Any) -> None:
    await register(tenant, hook, FINALIZE)
    assert [is_transient(await failure_of(tenant, hook)) for _ in range(2)] == [True, True]


@pytest.mark.parametrize(
    ("hooks", "more"),
    [
        ([FINALIZE], {"policy": OPEN}),
        ([ENDED, MODEL], {"policy": pb.FAILURE_POLICY_UNSPECIFIED}),
        ([SPAWN, ENDED], {}),
        ([FINALIZE], {"max_wait": Duration()}),
        ([FINALIZE], {"max_wait": Duration(seconds=86_401)}),
    ],
    ids=["open", "open by default", "no run waits", "zero", "too long"],
)
async def test_UpdatePlugin__a_limit_without_effect_is_refused(
    tenant: Tenant, hooks: list[Any], more: dict[str, Any]
) -> None:
    with refused(Reason.INVALID_REQUEST) as caught:
        await register(tenant, *hooks, **more)
    assert [violation.field for violation in caught.value.violations] == ["plugin.max_wait"]
    assert await tenant.plugin_names() == []


async def test_a_bundled_plugin_has_a_limit_for_every_tenant(mesh: HookMesh, tmp_path: Path) -> None:
    file = tmp_path / "bundled.json"
    entry = {"name": "gate", "endpoint": DEAD_ENDPOINT, "hooks": ["BEFORE_AGENT_FINALIZE"]}
    file.write_text(json.dumps([{**entry, "max_wait_seconds": 0.001}]))
    tenant = mesh.tenant(await mesh.replica(bundled_plugins_file=file))
    await tenant.prepare(1)
    [listed] = (await tenant.as_client("ListPlugins", pb.ListPluginsRequest())).plugins
    assert listed.max_wait == MOMENT
    assert [is_transient(await failure_of(tenant)) for _ in range(2)] == [True, False]
    file.write_text(json.dumps([{**entry, "max_wait_seconds": 1, "failure_policy": "OPEN"}]))
    with pytest.raises(ValueError, match="gate: max_wait_seconds needs the failure policy CLOSED"):
        await mesh.replica(bundled_plugins_file=file)
