"""Webhooks through the client, against a hook service in this process."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1 import webhook_pb2 as pb
from spawnmesh_client import FailedPrecondition, Mesh, MeshError, Reason, WebhookDeliveryState, connect
from spawnmesh_client.webhook_views import EVENT_TYPES, event_type_number, webhook_view
from spawnmesh_core.clock import utc_now
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.command.fake_mesh import FakeMesh, unset
from tests.support.command.webhooks import (
    EVENT_ID,
    SECRET,
    RecordedWebhooks,
    delivery_in,
    webhook_mesh,
    webhooks,
)

__all__ = ["unset", "webhook_mesh", "webhooks"]

URL = "https://example.com/hooks"


@pytest.fixture
async def client(webhook_mesh: FakeMesh, keys: Path) -> AsyncIterator[Mesh]:
    token = TokenMinter("client", keys / "client.pem").client_token("acme", "test", 60)
    async with connect(targets=webhook_mesh.targets, token=token) as connected:
        yield connected


def test_types_are_those_of_the_contract() -> None:
    assert EVENT_TYPES == (
        "session.started", "session.ended", "run.ended", "approval.requested", "approval.decided",
        "budget.reached", "budget.changed", "files.published", "transcript.compacted", "approval.escalated",
    )  # fmt: skip
    assert event_type_number("webhook.test") == pb.WEBHOOK_EVENT_TYPE_WEBHOOK_TEST


async def test_UpdateWebhook__put_replaces_all_fields(client: Mesh, webhooks: RecordedWebhooks) -> None:
    webhook, secret = await client.webhooks.put(
        "a", url=URL, event_types=["run.ended"], timeout=timedelta(seconds=2.5), allow_unreachable=True
    )
    await client.webhooks.put("a", url=URL, etag="e1")
    assert (webhook.name, webhook.event_types) == ("a", ("run.ended", "approval.requested"))
    assert (webhook.timeout, webhook.create_time) == (timedelta(seconds=15), datetime.fromtimestamp(1, UTC))
    assert (webhook.failing_since_time, webhook.previous_secret_expire_time) == (None, None)
    assert secret == SECRET
    first, second = webhooks.requests
    assert first.webhook == pb.Webhook(
        name="a", url=URL, event_types=[pb.WEBHOOK_EVENT_TYPE_RUN_ENDED],
        timeout=Duration(seconds=2, nanos=500_000_000),
    )  # fmt: skip
    assert second.webhook == pb.Webhook(name="a", url=URL, etag="e1")
    assert [list(one.update_mask.paths) for one in webhooks.requests] == [["*"], ["*"]]
    assert [one.allow_missing for one in webhooks.requests] == [True, True]
    assert [one.allow_unreachable for one in webhooks.requests] == [True, False]


async def test_UpdateWebhook__update_changes_what_is_given(client: Mesh, webhooks: RecordedWebhooks) -> None:
    await client.webhooks.update("a", event_types=[], etag="e1")
    await client.webhooks.update("a", url=URL, timeout=None, allow_unreachable=True)
    first, second = webhooks.requests
    assert (list(first.update_mask.paths), first.webhook) == (
        ["event_types"],
        pb.Webhook(name="a", etag="e1"),
    )
    assert (list(second.update_mask.paths), second.webhook) == (
        ["url", "timeout"],
        pb.Webhook(name="a", url=URL),
    )
    assert (first.allow_missing, second.allow_missing) == (False, False)
    assert (first.allow_unreachable, second.allow_unreachable) == (False, True)
    with pytest.raises(ValueError, match="name a field that changes: url, event_types, timeout"):
        await client.webhooks.update("a")


@pytest.mark.parametrize("types", [["run.end"], ["webhook.test"], ["RUN_ENDED"], [""], "run.ended"])
async def test_unknown_type_is_refused_with_the_known_ones(
    client: Mesh, webhooks: RecordedWebhooks, types: Any
) -> None:
    known = "is a list" if types == "run.ended" else f"known are {', '.join(EVENT_TYPES)}$"
    with pytest.raises(ValueError, match=known):
        await client.webhooks.put("a", url=URL, event_types=types)
    with pytest.raises(ValueError, match=known):
        await client.webhooks.update("a", event_types=types)
    assert webhooks.requests == []


async def test_webhooks_are_read_paused_resumed_and_deleted(client: Mesh, webhooks: RecordedWebhooks) -> None:
    webhooks.webhook.paused, webhooks.webhook.pause_reason = True, "it answered 410"
    assert [one.name for one in await client.webhooks.list()] == ["a", "b"]
    found = await client.webhooks.get("a")
    assert (found.paused, found.pause_reason, found.etag) == (True, "it answered 410", "e1")
    assert await client.webhooks.pause("a") == await client.webhooks.resume("a") == found
    await client.webhooks.delete("a", etag="e1")
    assert (webhooks.requests[-1].name, webhooks.requests[-1].etag) == ("a", "e1")


async def test_RotateWebhookSecret__repeats_have_the_given_request_id(
    client: Mesh, webhooks: RecordedWebhooks
) -> None:
    webhooks.webhook.previous_secret_expire_time.FromSeconds(9)
    webhook, secret = await client.webhooks.rotate_secret("a", keep_previous=3600, request_id="r1")
    await client.webhooks.rotate_secret("a", keep_previous=timedelta(0))
    await client.webhooks.rotate_secret("a")
    assert (webhook.previous_secret_expire_time, secret) == (datetime.fromtimestamp(9, UTC), SECRET)
    first, second, third = webhooks.requests
    assert (first.name, first.request_id, first.keep_previous.seconds) == ("a", "r1", 3600)
    assert (second.HasField("keep_previous"), second.keep_previous) == (True, Duration())
    assert not third.HasField("keep_previous")
    assert len({one.request_id for one in webhooks.requests}) == 3


async def test_TestWebhook__delivery_says_why_it_failed(client: Mesh, webhooks: RecordedWebhooks) -> None:
    failed = delivery_in(pb.WEBHOOK_DELIVERY_STATE_FAILED, (503, "HTTP status 503"))
    failed.event_type = pb.WEBHOOK_EVENT_TYPE_WEBHOOK_TEST
    webhooks.pages = [[failed]]
    delivery = await client.webhooks.test("a")
    assert (delivery.event_type, delivery.state) == ("webhook.test", WebhookDeliveryState.FAILED)
    [attempt] = delivery.attempts
    assert (attempt.status_code, attempt.error) == (503, "HTTP status 503")
    assert attempt.latency == timedelta(milliseconds=42)


async def test_ListWebhookDeliveries__every_page_is_read(client: Mesh, webhooks: RecordedWebhooks) -> None:
    delivered = delivery_in(pb.WEBHOOK_DELIVERY_STATE_DELIVERED, (500, "HTTP status 500"), (200, ""))
    webhooks.pages = [[], [delivered], [delivery_in(pb.WEBHOOK_DELIVERY_STATE_PENDING)]]
    since, before = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)
    found = [
        one
        async for one in client.webhooks.deliveries(
            "a", state="FAILED", event_type="run.ended", session_id="ses_1", since=since, before=before
        )
    ]
    assert [(one.state, one.attempt_count) for one in found] == [("DELIVERED", 2), ("PENDING", 0)]
    assert (found[0].event_id, found[0].event_type) == (EVENT_ID, "run.ended")
    assert (found[0].end_time, found[0].body_json) == (None, '{"type":"run.ended"}')
    request = webhooks.requests[0]
    assert (request.state, request.event_type) == (
        pb.WEBHOOK_DELIVERY_STATE_FAILED,
        pb.WEBHOOK_EVENT_TYPE_RUN_ENDED,
    )
    assert (request.name, request.session_id) == ("a", "ses_1")
    assert request.start_time.ToDatetime(UTC) == since
    assert request.end_time.ToDatetime(UTC) == before


async def test_time_can_be_that_long_ago(client: Mesh, webhooks: RecordedWebhooks) -> None:
    before = utc_now()
    assert [one async for one in client.webhooks.deliveries("a", since=timedelta(hours=1))] == []
    assert [one async for one in client.webhooks.deliveries("a")] == []
    first, second = webhooks.requests
    assert before <= first.start_time.ToDatetime(UTC) + timedelta(hours=1) <= utc_now()
    assert not second.HasField("start_time")
    with pytest.raises(ValueError, match="a time needs its zone"):
        await client.webhooks.replay_failed("a", since=datetime(2026, 1, 2))  # noqa: DTZ001
    with pytest.raises(ValueError, match="no type of events"):
        await anext(client.webhooks.deliveries("a", event_type="run.end"))
    with pytest.raises(ValueError, match="PENDING, DELIVERED, FAILED"):
        await anext(client.webhooks.deliveries("a", state="LOST"))
    assert len(webhooks.requests) == 2


async def test_ReplayWebhookDeliveries__goes_on_while_there_are_more(
    client: Mesh, webhooks: RecordedWebhooks
) -> None:
    webhooks.replays = [1000, 0, 7]
    assert await client.webhooks.replay_failed("a", since=timedelta(days=1)) == 1007
    first, second, third = webhooks.requests
    assert first == second == third
    webhooks.replays = [1]
    assert await client.webhooks.replay("a", [EVENT_ID]) == 1
    assert list(webhooks.requests[-1].events.event_ids) == [EVENT_ID]


async def test_refusal_has_its_reason(client: Mesh, webhooks: RecordedWebhooks) -> None:
    webhooks.refusal = MeshError(Reason.ENDPOINT_NOT_ALLOWED, "no", facts={"endpoint": URL})
    with pytest.raises(FailedPrecondition) as refused:
        await client.webhooks.put("a", url=URL)
    assert refused.value.reason is Reason.ENDPOINT_NOT_ALLOWED


def test_type_of_a_newer_mesh_is_unknown() -> None:
    assert webhook_view(pb.Webhook(event_types=[99])).event_types == ("unknown",)  # type: ignore[list-item]
