"""Plugins and the outbox of a tenant that masks secrets."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from google.protobuf.duration_pb2 import Duration
from spawnmesh.content.v1 import message_pb2 as content
from spawnmesh.hook.v1 import compaction_pb2 as compactions
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1 import native_stop_pb2 as native_pb
from spawnmesh.hook.v1 import observed_pb2 as observed
from spawnmesh.hook.v1 import run_hook_service_pb2 as run_pb
from spawnmesh_core.reasons import Reason
from spawnmesh_core.secret_forms import Secret, marker
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.peers import Peer

from tests.support import tenancy
from tests.support.cpu_workers import worker_pids
from tests.support.hook.decisions import decision_of
from tests.support.hook.dispatching import DEFAULT_ANSWERS
from tests.support.hook.fixtures import (
    COMPACTION,
    CONTENT,
    FINALIZE,
    PROMPT,
    SPAWN,
    TOOL_CALL,
    HookMesh,
    Tenant,
    refused,
)
from tests.support.hook.masking import (
    ARGUMENTS,
    KEY,
    RUN,
    SECRETS,
    TEXT,
    assert_masked,
    call_tool,
    stored_content,
)
from tests.support.hook.webhook_server import Handle, https_site, write_certificate

MESSAGE = content.Message(
    role=content.ROLE_ASSISTANT,
    content=[
        content.ContentBlock(text=content.Text(text=TEXT)),
        content.ContentBlock(
            tool_call=content.ToolCall(
                tool_call_id="c", name="exec", block_json=json.dumps({"input": {"c": TEXT}})
            )
        ),
    ],
)
SHELL = content.Message(
    role=content.ROLE_BASH_EXECUTION, bash_execution=content.BashExecution(command=TEXT, exit_code=0)
)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls") / "webhook.pem")


@pytest.fixture
async def replica(mesh: HookMesh, certificate: Path) -> Peer:
    return await mesh.replica(webhook_ca_file=certificate)


@pytest.fixture
async def tenant(mesh: HookMesh, replica: Peer) -> Tenant:
    return mesh.tenant(replica)


@pytest.fixture
async def site(certificate: Path) -> AsyncIterator[Callable[[Handle], Awaitable[str]]]:
    async with AsyncExitStack() as stack:

        async def served(handle: Handle) -> str:
            return await stack.enter_async_context(https_site(handle, certificate))

        yield served


async def spawn(tenant: Tenant) -> None:
    await tenant.spawn(task=TEXT)


async def draft(tenant: Tenant) -> None:
    await tenant.draft("one", draft_text=TEXT)


async def native(tenant: Tenant) -> None:
    event = {"hook_event_name": "Stop", "session_id": "s", "last_assistant_message": TEXT}
    request = native_pb.RelayNativeStopRequest(
        request_id="r", harness=native_pb.NATIVE_HARNESS_CODEX, event_json=json.dumps(event)
    )
    await tenant.as_client("RelayNativeStop", request)


async def build_prompt(tenant: Tenant) -> None:
    event = events.BeforePromptBuildEvent(**RUN, system_prompt=TEXT)
    await tenant.as_run("DispatchBeforePromptBuild", run_pb.DispatchBeforePromptBuildRequest(event=event))


async def compact(tenant: Tenant) -> None:
    event = compactions.BeforeCompactionEvent(session_id="ses_1", previous_summary=TEXT)
    await tenant.as_transcript(
        "DispatchBeforeCompaction", compactions.DispatchBeforeCompactionRequest(event=event)
    )


GATES: dict[str, tuple["events.HookKind.ValueType", Callable[[Tenant], Awaitable[object]], str]] = {
    "spawn": (SPAWN, spawn, "task"),
    "draft": (FINALIZE, draft, "draft_text"),
    "native draft": (FINALIZE, native, "draft_text"),
    "tool call": (TOOL_CALL, call_tool, "arguments_json"),
    "prompt": (PROMPT, build_prompt, "system_prompt"),
    "compaction": (COMPACTION, compact, "previous_summary"),
}


class Hearer:
    """A webhook that allows everything, and records its requests."""

    def __init__(self, decision: Any) -> None:
        self.heard: list[str] = []
        self._decision = decision

    async def handle(self, request: web.Request) -> web.Response:
        self.heard.append((await request.read()).decode())
        return web.json_response(self._decision)


GOES_ON: dict["events.HookKind.ValueType", Any] = {
    SPAWN: {"decision": {"allow": {}}},
    FINALIZE: {"decision": {"continue": {}}},
    TOOL_CALL: {"decision": {"proceed": {}}},
    PROMPT: {"decision": {}},
    COMPACTION: {"decision": {"compact": {}}},
}


@pytest.mark.parametrize("case", list(GATES))
async def test_requests_have_markers_while_secrets_are_masked(
    mesh: HookMesh,
    replica: Peer,
    tenant: Tenant,
    site: Callable[[Handle], Awaitable[str]],
    databases: dict[str, ServiceDsn],
    case: str,
) -> None:
    hook, ask, field = GATES[case]
    plugin, webhook = await mesh.plugin(DEFAULT_ANSWERS[hook]), Hearer(GOES_ON[hook])
    blind = await mesh.plugin(DEFAULT_ANSWERS[hook])
    await tenant.register("grpc", plugin.endpoint, hook, grants=[CONTENT], priority=1)
    await tenant.register("webhook", await site(webhook.handle), hook, grants=[CONTENT])
    await tenant.register("blind", blind.endpoint, hook)
    assert await tenant.prepare(2, mask_secrets=True) == 2
    await ask(tenant)
    received = getattr(plugin.heard[0], field)
    assert_masked(received, case)
    assert_masked(webhook.heard[0], case)
    assert getattr(blind.heard[0], field) == ""
    if field == "arguments_json":
        assert received.endswith(
            f'"{{\\"env\\": \\"{marker(Secret.PROVIDER_KEY)}\\"}}", "plain": "as it is"}}'
        )
    else:
        assert received.endswith("\nthe end")
    rows = await stored_content(databases["hook"], tenant)
    for secret in SECRETS:
        assert secret.encode() not in rows
    assert {decision_of(row) for row in await tenant.deliveries()}.isdisjoint({"failed", "skipped"})


@pytest.mark.parametrize("case", list(GATES))
async def test_requests_are_unchanged_while_secrets_are_not_masked(
    mesh: HookMesh, replica: Peer, tenant: Tenant, case: str
) -> None:
    hook, ask, field = GATES[case]
    plugin = await mesh.plugin(DEFAULT_ANSWERS[hook])
    await tenant.register("a", plugin.endpoint, hook, grants=[CONTENT])
    for version, on in ((1, True), (2, False)):  # Version 1 is stored: it changes nothing.
        await tenant.prepare(version, mask_secrets=on)
        await ask(tenant)
    expected = ARGUMENTS if field == "arguments_json" else TEXT
    assert {getattr(event, field) for event in plugin.heard} == {expected}


OBSERVED = {
    "llm_input": observed.LlmInputEvent(system_prompt=TEXT, messages=[MESSAGE, SHELL]),
    "llm_output": observed.LlmOutputEvent(model="m", message=MESSAGE),
    "after_tool_call": observed.AfterToolCallEvent(tool_name="exec", tool_call_id="c", result_text=TEXT),
    "after_compaction": observed.AfterCompactionEvent(entry_id="e", summary=TEXT),
}


async def publish(tenant: Tenant, kind: str, key: str = "e") -> None:
    received: dict[str, Any] = {kind: OBSERVED[kind]}
    event = observed.ObservedEvent(event_key=key, session_id="ses_1", run_id="run_1", **received)
    as_publisher = tenant.as_transcript if kind == "after_compaction" else tenant.as_run
    answer = await as_publisher("PublishEvents", pb.PublishEventsRequest(events=[event]))
    assert answer.queued_count > 0


def kind_of(name: str) -> "events.HookKind.ValueType":
    return events.HookKind.Value(f"HOOK_KIND_{name.upper()}")


@pytest.mark.parametrize("kind", list(OBSERVED))
@pytest.mark.parametrize("on", [True, False])
async def test_events_are_masked_in_the_outbox_and_for_observers(
    mesh: HookMesh,
    replica: Peer,
    tenant: Tenant,
    certificate: Path,
    site: Callable[[Handle], Awaitable[str]],
    databases: dict[str, ServiceDsn],
    kind: str,
    on: bool,
) -> None:
    plugin, webhook = await mesh.plugin(), Hearer({})
    plugin.says(None)
    calm: dict[str, Any] = {
        "grants": [CONTENT],
        "timeout": Duration(seconds=30),
    }  # Tolerates a machine that is slow for a moment.
    await tenant.register("grpc", plugin.endpoint, kind_of(kind), **calm)
    await tenant.register("webhook", await site(webhook.handle), kind_of(kind), **calm)
    await tenant.prepare(2, mask_secrets=on)
    await publish(tenant, kind)
    rows = await stored_content(databases["hook"], tenant)
    assert [secret for secret in SECRETS if (secret.encode() in rows) is on] == []
    worker = await mesh.worker(webhook_ca_file=certificate)
    while not (plugin.heard and webhook.heard):
        await worker.deliveries.run_due()
    received = plugin.heard[0]
    assert all(again == received for again in plugin.heard)  # Delivery is at least once.
    if not on:
        assert getattr(received, kind) == OBSERVED[kind]
        assert KEY in webhook.heard[0]
        return
    assert_masked(str(received).replace('\\"', '"'), kind)
    assert_masked(webhook.heard[0], kind)
    assert all(secret.encode() not in received.SerializeToString() for secret in SECRETS)
    rows = await stored_content(databases["hook"], tenant)
    assert [secret for secret in SECRETS if secret.encode() in rows] == []
    assert {row.plugin for row in await tenant.deliveries() if decision_of(row) == "told"} == {
        "grpc",
        "webhook",
    }


async def test_large_content_is_masked_in_another_process(
    mesh: HookMesh, replica: Peer, tenant: Tenant
) -> None:
    plugin = await mesh.plugin(DEFAULT_ANSWERS[TOOL_CALL])
    await tenant.register("grpc", plugin.endpoint, TOOL_CALL, grants=[CONTENT])
    await tenant.prepare(2, mask_secrets=True)
    before = worker_pids()
    await call_tool(tenant)
    assert worker_pids() == before, "little content needs no worker"
    await call_tool(tenant, json.dumps({"padding": "x " * 32_000, "command": TEXT}))
    assert worker_pids() > before
    assert_masked(plugin.heard[1].arguments_json, "tool call")


async def test_events_published_before_the_change_are_delivered_masked(
    mesh: HookMesh, replica: Peer, tenant: Tenant
) -> None:
    """An event that cannot be masked is delivered without content."""
    plugin = await mesh.plugin()
    plugin.says(None)
    await tenant.register("a", plugin.endpoint, kind_of("llm_output"), grants=[CONTENT])
    await publish(tenant, "llm_output", "good")
    call = content.ToolCall(tool_call_id="c", name="exec", block_json=f'{{"c": "{KEY}"')
    broken = content.Message(role=content.ROLE_ASSISTANT, content=[content.ContentBlock(tool_call=call)])
    event = observed.ObservedEvent(
        event_key="broken",
        session_id="ses_1",
        run_id="run_1",
        llm_output=observed.LlmOutputEvent(message=broken),
    )
    await tenant.as_run("PublishEvents", pb.PublishEventsRequest(events=[event]))
    await tenant.prepare(2, mask_secrets=True)
    worker = await mesh.worker()
    while len(plugin.heard) < 2:
        await worker.deliveries.run_due()
    received = {event.event_key: event for event in plugin.heard}
    assert_masked(str(received["run:run_1:good"]), "good")
    assert not received["run:run_1:broken"].llm_output.HasField("message")
    event.event_key = "again"
    with refused(Reason.INVALID_REQUEST):
        await tenant.as_run("PublishEvents", pb.PublishEventsRequest(events=[event]))


async def test_a_change_holds_for_the_next_request_at_another_replica(
    mesh: HookMesh, replica: Peer, tenant: Tenant
) -> None:
    other = tenant.on(await mesh.replica())
    plugin = await mesh.plugin(DEFAULT_ANSWERS[SPAWN])
    await tenant.register("a", plugin.endpoint, SPAWN, grants=[CONTENT])
    for version in range(2, 21):
        await other.spawn(task="warm")  # Caches the tenant's plugins.
        assert await tenant.prepare(version, mask_secrets=version % 2 == 1) == version
        await other.spawn(task=TEXT)
        assert (KEY in plugin.heard[-1].task) is (version % 2 == 0), version
    assert await tenant.prepare(19, mask_secrets=True) == 20
    assert await tenant.prepare(20, mask_secrets=True) == 20
    assert await tenant.prepare(1, mask_secrets=True) == 20
    await other.spawn(task=TEXT)
    assert plugin.heard[-1].task == TEXT


async def test_tenants_have_separate_settings(mesh: HookMesh, replica: Peer, tenant: Tenant) -> None:
    plugin, others = await mesh.plugin(DEFAULT_ANSWERS[SPAWN]), mesh.tenant(replica)
    for one in (tenant, others):
        await one.register("a", plugin.endpoint, SPAWN, grants=[CONTENT])
    await tenant.prepare(7, mask_secrets=True)
    await others.spawn(task=TEXT)
    assert plugin.heard[-1].task == TEXT


async def test_PurgeTenant__deletes_the_setting(mesh: HookMesh, replica: Peer, tenant: Tenant) -> None:
    await tenant.prepare(9, mask_secrets=True)
    with impersonate(tenant.tenant_id):
        assert (await tenancy.purge(replica)).done
    assert await tenant.prepare(1) == 1
    plugin = await mesh.plugin(DEFAULT_ANSWERS[SPAWN])
    await tenant.register("a", plugin.endpoint, SPAWN, grants=[CONTENT])
    await tenant.spawn(task=TEXT)
    assert plugin.heard[0].task == TEXT
