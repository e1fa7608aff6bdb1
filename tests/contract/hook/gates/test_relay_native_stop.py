"""RelayNativeStop, and the bounds of revisions by key and over restarts."""

import json
import os
import secrets
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.hook.v1 import decision_pb2 as decisions
from spawnmesh.hook.v1 import native_stop_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.cpu_workers import until_ended, worker_pids
from tests.support.hook.fixtures import (
    CONTENT,
    DEAD_ENDPOINT,
    FINALIZE,
    HookMesh,
    Tenant,
    hook_replica,
    refused,
)
from tests.support.hook.scripted_plugin import CONTINUE, finalize, revise


async def stop(
    tenant: Tenant, *, request_id: str = "", text: str = "", **event: Any
) -> pb.RelayNativeStopResponse:
    event = {"hook_event_name": "Stop", "session_id": "s", "stop_hook_active": False, **event}
    request = pb.RelayNativeStopRequest(
        request_id=request_id or uuid.uuid4().hex,
        harness=pb.NATIVE_HARNESS_CODEX,
        event_json=text or json.dumps(event),
    )
    answer: pb.RelayNativeStopResponse = await tenant.as_client("RelayNativeStop", request)
    return answer


async def test_RelayNativeStop__blocked_at_most_three_times_a_turn(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin(revise("run the tests"))
    await tenant.register("a", plugin.endpoint, FINALIZE, grants=[CONTENT])
    for number in (1, 2, 3):
        answer = await stop(tenant, last_assistant_message="done")
        assert json.loads(answer.output) == {"decision": "block", "reason": "run the tests"}
        assert answer.revision_number == number
    last = await stop(tenant)
    assert (last.output, last.capped) == ("", True)
    assert (await stop(tenant, turn_id="2")).revision_number == 1
    assert plugin.heard[0].draft_text == "done"


async def test_RelayNativeStop__a_repeat_calls_no_plugin(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin(revise("again"))
    await tenant.register("a", plugin.endpoint, FINALIZE)
    assert await stop(tenant, request_id="r") == await stop(tenant, request_id="r")
    assert len(plugin.heard) == 1


async def test_RelayNativeStop__a_failing_plugin_allows_the_stop(mesh: HookMesh, tenant: Tenant) -> None:
    await tenant.register("dead", DEAD_ENDPOINT, FINALIZE)
    assert (await stop(tenant)).output == ""
    assert await tenant.log() == [("dead", "failed")]


async def test_RelayNativeStop__ids_of_the_maximum_length(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin(revise("again"))
    await tenant.register("a", plugin.endpoint, FINALIZE)
    rows = [secrets.token_hex(128), secrets.token_hex(8)]
    for session_id in rows:
        agent_id = secrets.token_hex(4_000)
        assert (
            await stop(tenant, session_id=session_id, turn_id=agent_id, agent_id=agent_id)
        ).revision_number == 1
    assert [delivery.session_id for delivery in reversed(await tenant.deliveries())] == rows


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "no",
        '{"hook_event_name":"Stop"}',
        json.dumps({"hook_event_name": "Stop", "session_id": "é" * 129}),
        '{"hook_event_name":"Stop","session_id":"s","a":[' + '{"":0},' * 5_000 + "0]}",
    ],
    ids=["list", "no JSON", "no session", "long session", "many values"],
)
async def test_RelayNativeStop__malformed_event(tenant: Tenant, text: str) -> None:
    with refused(Reason.INVALID_REQUEST):
        await stop(tenant, text=text)


async def test_RelayNativeStop__a_worker_reads_a_large_event(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin(revise("again"))
    await tenant.register("a", plugin.endpoint, FINALIZE, grants=[CONTENT])
    for pid in (earlier := worker_pids()):
        os.kill(pid, signal.SIGKILL)
    await until_ended(earlier)
    assert (await stop(tenant, last_assistant_message="done")).revision_number == 1
    assert not worker_pids(), "a small event needs no worker"
    assert (await stop(tenant, last_assistant_message="done", padding="x, " * 300_000)).revision_number == 2
    assert worker_pids()
    assert plugin.heard[1].draft_text == "done"


def keyed(key: str, attempts: int = 0) -> decisions.FinalizeDecision:
    return decisions.FinalizeDecision(
        revise=decisions.Revise(reason=f"because of {key}", objection_key=key, max_attempts=attempts)
    )


async def test_the_attempts_of_a_key_are_counted_over_restarts(
    mesh: HookMesh, databases: dict[str, ServiceDsn], keys: Path
) -> None:
    once, twice = await mesh.plugin(keyed("tests")), await mesh.plugin(keyed("tests", 2))
    async with hook_replica(databases["hook"], keys) as before:
        tenant = mesh.tenant(before)
        await tenant.register("once", once.endpoint, FINALIZE, priority=1)
        await tenant.register("twice", twice.endpoint, FINALIZE)
        assert list((await tenant.draft("k1")).decided_by) == ["once", "twice"]
    restarted = tenant.on(await mesh.replica())
    assert list((await restarted.draft("k2")).decided_by) == ["twice"]
    capped = await restarted.draft("k3")
    assert (capped.decision, bool(capped.capped_revisions)) == (CONTINUE, True)
    assert list((await restarted.draft("k1", run_id="run_2")).decided_by) == ["once", "twice"]


async def test_no_revision_after_effects_that_cannot_be_undone(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin(keyed("tests"))
    await tenant.register("a", plugin.endpoint, FINALIZE)
    capped = await tenant.draft("k1", has_final_effects=True)
    assert (capped.decision, bool(capped.capped_revisions)) == (CONTINUE, True)
    assert (await tenant.draft("k2")).revision_number == 1
    plugin.says(finalize("done"))
    assert (await tenant.draft("k3", has_final_effects=True)).decision == finalize("done")
