"""Messages to webhooks: their form, their signature, and their way into the log."""

import asyncio
import json
import re
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.hook.v1 import hook_service_pb2 as hooks
from spawnmesh.hook.v1 import observed_pb2 as observed
from spawnmesh.hook.v1 import webhook_pb2
from spawnmesh.hook.v1.end_outcome_pb2 import END_OUTCOME_FAILED
from spawnmesh.transcript.v1.entry_pb2 import SUMMARY_METHOD_AGGRESSIVE
from spawnmesh_core.reasons import Reason
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.domain.webhooks import TYPE_OF_HOOK
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.fixtures import ENDED, HookMesh, Tenant, ended, refused
from tests.support.hook.webhook_receiver import (
    DELIVERED,
    NO_RECEIVER,
    RUN_ENDED,
    SESSION_ENDED,
    Execute,
    Serve,
    WebhookReceiver,
    log_of,
    put_webhook,
    run_ended,
    send_test,
    session_ended,
)

HAPPENED = Timestamp(seconds=1_764_000_000, nanos=120_000_000)
LATER = Timestamp(seconds=1_764_003_600)
MANY = 2**40
SECRET_WORDS = "the plan is secret"

EVENTS: dict[HookKind, tuple[dict[str, Any], dict[str, Any]]] = {
    HookKind.SESSION_START: (
        {"session_start": observed.SessionStartEvent(parent_session_id="ses_0")},
        {"parent_session_id": "ses_0"},
    ),
    HookKind.SESSION_END: ({"session_end": observed.SessionEndEvent()}, {}),
    HookKind.AGENT_END: (
        {"run_id": "run_1", "agent_end": observed.AgentEndEvent(outcome=END_OUTCOME_FAILED)},
        {"run_id": "run_1", "outcome": "FAILED"},
    ),
    HookKind.APPROVAL_REQUESTED: (
        {
            "run_id": "run_1",
            "agent_id": "main",
            "approval_requested": observed.ApprovalRequestedEvent(
                approval_id="apr_1", tool_name="pay", expire_time=LATER
            ),
        },
        {
            "run_id": "run_1",
            "agent_id": "main",
            "approval_id": "apr_1",
            "tool_name": "pay",
            "expire_time": "2025-11-24T17:00:00Z",
        },
    ),
    HookKind.APPROVAL_DECIDED: (
        {
            "run_id": "run_1",
            "approval_decided": observed.ApprovalDecidedEvent(
                approval_id="apr_1", tool_name="pay", state="DENIED", decided_by="ann"
            ),
        },
        {
            "run_id": "run_1",
            "approval_id": "apr_1",
            "tool_name": "pay",
            "state": "DENIED",
            "decided_by": "ann",
        },
    ),
    HookKind.APPROVAL_ESCALATED: (
        {
            "run_id": "run_1",
            "approval_escalated": observed.ApprovalEscalatedEvent(
                approval_id="apr_1", tool_name="pay", expire_time=LATER
            ),
        },
        {
            "run_id": "run_1",
            "approval_id": "apr_1",
            "tool_name": "pay",
            "expire_time": "2025-11-24T17:00:00Z",
        },
    ),
    HookKind.BUDGET_REACHED: (
        {
            "run_id": "run_1",
            "budget_reached": observed.BudgetReachedEvent(budget_session_id="ses_0", expire_time=LATER),
        },
        {"run_id": "run_1", "budget_session_id": "ses_0", "expire_time": "2025-11-24T17:00:00Z"},
    ),
    HookKind.BUDGET_CHANGED: (
        {"budget_changed": observed.BudgetChangedEvent(changed_by="ann")},
        {"changed_by": "ann"},
    ),
    HookKind.FILES_PUBLISHED: (
        {
            "run_id": "run_1",
            "files_published": observed.FilesPublishedEvent(set_id="set_1", file_count=2, total_bytes=MANY),
        },
        {"run_id": "run_1", "set_id": "set_1", "file_count": 2, "total_bytes": MANY},
    ),
    HookKind.AFTER_COMPACTION: (
        {
            "run_id": "run_1",
            "after_compaction": observed.AfterCompactionEvent(
                entry_id="ent_1",
                source_entry_count=3,
                source_token_count=MANY,
                summary_token_count=7,
                method=SUMMARY_METHOD_AGGRESSIVE,
                model="m",
                summary=SECRET_WORDS,
            ),
        },
        {
            "run_id": "run_1",
            "entry_id": "ent_1",
            "source_entry_count": 3,
            "source_token_count": MANY,
            "summary_token_count": 7,
            "method": "AGGRESSIVE",
            "model": "m",
        },
    ),
}
"""The fields of an event of each hook, and `data` of its message besides the session."""


def event_of(hook: HookKind) -> observed.ObservedEvent:
    fields, _ = EVENTS[hook]
    return observed.ObservedEvent(
        event_key=f"{hook}:v1:ses_1", event_time=HAPPENED, session_id="ses_1", **fields
    )


async def publish(tenant: Tenant, event: observed.ObservedEvent) -> int:
    """Publish the event as the service whose event it is. Return the number of queued deliveries."""
    call = tenant.as_transcript if event.HasField("after_compaction") else tenant.as_session
    answer = await call("PublishEvents", hooks.PublishEventsRequest(events=[event]))
    return int(answer.queued_count)


async def test_a_message_is_signed_and_logged(tenant: Tenant, worker: JobWorker, serve: Serve) -> None:
    receiver = WebhookReceiver()
    put = await put_webhook(tenant, await serve(receiver))
    assert await tenant.publish(run_ended()) == 1
    await worker.run_due()
    [message] = receiver.messages(put.secret)
    assert message["type"] == "run.ended"
    assert message["data"] == {"session_id": "ses_1", "run_id": "run_1", "outcome": "SUCCEEDED"}
    [delivery] = await log_of(tenant)
    assert (delivery.state, delivery.attempt_count, delivery.event_id) == (DELIVERED, 1, receiver.ids[0])
    assert [(one.status_code, one.error) for one in delivery.attempts] == [(204, "")]
    assert delivery.body_json.encode() == receiver.bodies[0]
    headers = receiver.headers[0]
    assert headers["content-type"] == "application/json"
    assert headers["webhook-id"].startswith("evt_")
    assert headers["user-agent"] == "Spawnmesh"
    assert "authorization" not in headers


async def test_a_receiver_is_not_told_the_trace(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver()
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    await execute("update jobs set traceparent = %(traced)s", traced=f"00-{7:032x}-{9:016x}-01")
    await worker.run_due()
    await send_test(tenant)
    assert len(receiver.headers) == 2
    for headers in receiver.headers:
        assert not {"traceparent", "tracestate", "baggage"} & set(headers)


def test_the_events_here_are_all_that_webhooks_are_sent_with_all_their_fields() -> None:
    assert set(EVENTS) == set(TYPE_OF_HOOK)
    for hook, (fields, _) in EVENTS.items():
        details = fields[hook.lower()]
        assert {field for field, _ in details.ListFields()} == set(details.DESCRIPTOR.fields), hook
    names = {one.replace("_", ".", 1).lower() for one in _type_names()}
    assert {one.value for one in TYPE_OF_HOOK.values()} == names - {"webhook.test"}


def _type_names() -> set[str]:
    names = webhook_pb2.WebhookEventType.keys()
    return {one.removeprefix("WEBHOOK_EVENT_TYPE_") for one in names if not one.endswith("UNSPECIFIED")}


async def test_each_event_is_a_message_of_its_type_without_content(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver()
    put = await put_webhook(tenant, await serve(receiver))
    for hook in EVENTS:
        assert await publish(tenant, event_of(hook)) == 1, hook
    await worker.run_due()
    received = {message["type"]: message for message in receiver.messages(put.secret)}
    assert len(receiver.bodies) == len(set(receiver.ids)) == len(EVENTS)
    for hook, (_, data) in EVENTS.items():
        message = received[TYPE_OF_HOOK[hook].value]
        assert message["data"] == {"session_id": "ses_1", **data}, hook
        assert message["timestamp"] == "2025-11-24T16:00:00.120000Z"
        assert set(message) == {"type", "timestamp", "data"}
    stored = str(await execute("select webhook_deliveries::text from webhook_deliveries"))
    for text in (stored, *(body.decode() for body in receiver.bodies)):
        assert SECRET_WORDS not in text
    log = await log_of(tenant)
    assert {(one.session_id, one.event_time.ToNanoseconds()) for one in log} == {
        ("ses_1", HAPPENED.ToNanoseconds())
    }


async def test_events_of_other_hooks_are_no_messages(tenant: Tenant) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    spawned = observed.ObservedEvent(
        event_key="s", session_id="ses_1", subagent_spawned=observed.SubagentSpawnedEvent()
    )
    assert await tenant.publish(ended("ended:1"), spawned) == 0
    call = observed.AfterToolCallEvent(tool_name="a")
    event = observed.ObservedEvent(event_key="c", session_id="ses_1", run_id="run_1", after_tool_call=call)
    answer = await tenant.as_run("PublishEvents", hooks.PublishEventsRequest(events=[event]))
    assert answer.queued_count == 0
    assert await log_of(tenant) == []


async def test_a_run_cannot_publish_an_event_of_a_webhook(tenant: Tenant) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    for hook in EVENTS:
        event = event_of(hook)
        event.run_id = "run_1"
        with refused(Reason.INVALID_REQUEST):
            await tenant.as_run("PublishEvents", hooks.PublishEventsRequest(events=[event]))
    assert await log_of(tenant) == []


async def test_an_event_that_is_published_again_is_the_same_message(
    tenant: Tenant, worker: JobWorker, serve: Serve
) -> None:
    receiver = WebhookReceiver()
    await put_webhook(tenant, await serve(receiver))
    assert sorted(await asyncio.gather(*(tenant.publish(run_ended()) for _ in range(4)))) == [0, 0, 0, 1]
    await worker.run_due()
    assert await tenant.publish(run_ended(), run_ended(2)) == 1
    await worker.run_due()
    assert len(receiver.ids) == len(set(receiver.ids)) == 2
    assert len(await log_of(tenant)) == 2


async def test_a_message_has_one_id_at_all_webhooks(
    mesh: HookMesh, tenant: Tenant, worker: JobWorker, serve: Serve
) -> None:
    receivers = [WebhookReceiver(), WebhookReceiver()]
    secrets = []
    for number, receiver in enumerate(receivers):
        put = await put_webhook(tenant, await serve(receiver), name=f"w{number}")
        secrets.append(put.secret)
    plugin = await mesh.plugin(None)
    await tenant.register("observer", plugin.endpoint, ENDED)
    assert await tenant.publish(run_ended()) == 2
    await worker.run_due()
    assert [receiver.ids for receiver in receivers] == [receivers[0].ids] * 2
    for receiver, secret, other in zip(receivers, secrets, reversed(secrets), strict=True):
        assert receiver.is_signed(secret)
        assert not receiver.is_signed(other)


async def test_a_webhook_is_sent_the_types_that_it_wants(
    tenant: Tenant, worker: JobWorker, serve: Serve
) -> None:
    everything, ends, both = WebhookReceiver(), WebhookReceiver(), WebhookReceiver()
    await put_webhook(tenant, await serve(everything), name="everything")
    await put_webhook(tenant, await serve(ends), RUN_ENDED, name="ends")
    await put_webhook(tenant, await serve(both), RUN_ENDED, SESSION_ENDED, name="both")
    assert await tenant.publish(run_ended(), session_ended(), event_of(HookKind.BUDGET_CHANGED)) == 6
    await worker.run_due()
    assert sorted(everything.types) == ["budget.changed", "run.ended", "session.ended"]
    assert ends.types == ["run.ended"]
    assert sorted(both.types) == ["run.ended", "session.ended"]


async def test_another_tenant_is_sent_nothing(
    mesh: HookMesh, tenant: Tenant, worker: JobWorker, serve: Serve
) -> None:
    receiver = WebhookReceiver()
    url = await serve(receiver)
    other = mesh.tenant(tenant._session)
    secrets = {(await put_webhook(one, url)).secret for one in (tenant, other)}
    assert len(secrets) == 2
    await tenant.publish(run_ended())
    await worker.run_due()
    assert len(receiver.bodies) == 1
    assert await log_of(other) == []


async def test_an_event_without_a_time_happens_when_it_is_published(
    tenant: Tenant, worker: JobWorker, serve: Serve
) -> None:
    receiver = WebhookReceiver()
    put = await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    await worker.run_due()
    [message] = receiver.messages(put.secret)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", message["timestamp"])
    happened = json_format.Parse(json.dumps(message["timestamp"]), Timestamp())
    [delivery] = await log_of(tenant)
    assert happened == delivery.event_time
    assert delivery.event_time.ToNanoseconds() > HAPPENED.ToNanoseconds()


@pytest.mark.parametrize("session_id", ["ses_1", "sitzung-ä", "s" * 64])
async def test_a_body_is_signed_as_it_is_sent(
    tenant: Tenant, worker: JobWorker, serve: Serve, session_id: str
) -> None:
    receiver = WebhookReceiver()
    put = await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended(session_id=session_id))
    await worker.run_due()
    [message] = receiver.messages(put.secret)
    assert message["data"]["session_id"] == session_id
