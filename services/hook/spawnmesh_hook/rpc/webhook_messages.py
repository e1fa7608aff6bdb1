"""Parses and renders messages that several RPCs of WebhookService share."""

from spawnmesh.hook.v1 import webhook_pb2 as pb
from spawnmesh_calls.wire_times import duration_of, timestamp_of
from spawnmesh_core.clock import utc_now

from spawnmesh_hook.domain.webhooks import (
    DeliveryState,
    Webhook,
    WebhookAttempt,
    WebhookDelivery,
    WebhookType,
)


def render_webhook(webhook: Webhook) -> pb.Webhook:
    """Render the webhook, without its secrets."""
    until = webhook.previous_secret_until
    return pb.Webhook(
        name=webhook.name,
        url=webhook.url,
        event_types=[_render_type(one) for one in webhook.event_types],
        timeout=duration_of(webhook.timeout),
        paused=webhook.paused,
        pause_reason=webhook.pause_reason,
        failing_since_time=timestamp_of(webhook.failing_since),
        previous_secret_expire_time=timestamp_of(until if until and until > utc_now() else None),
        create_time=timestamp_of(webhook.create_time),
        etag=webhook.etag,
    )


def render_delivery(delivery: WebhookDelivery) -> pb.WebhookDelivery:
    """Render one message of the log."""
    message = delivery.message
    return pb.WebhookDelivery(
        event_id=message.event_id,
        event_type=_render_type(message.event_type),
        session_id=message.session_id,
        run_id=message.run_id,
        state=pb.WebhookDeliveryState.Value(f"WEBHOOK_DELIVERY_STATE_{delivery.state}"),
        event_time=timestamp_of(message.event_time),
        queue_time=timestamp_of(delivery.queue_time),
        end_time=timestamp_of(delivery.end_time),
        attempt_count=delivery.attempt_count,
        attempts=map(_render_attempt, delivery.attempts),
        body_json=message.body,
    )


def parse_type(event_type: "pb.WebhookEventType.ValueType") -> WebhookType | None:
    """Return the type of a request; None for any."""
    name = pb.WebhookEventType.Name(event_type).removeprefix("WEBHOOK_EVENT_TYPE_")
    return WebhookType[name] if event_type else None


def parse_state(state: "pb.WebhookDeliveryState.ValueType") -> DeliveryState | None:
    """Return the state of a request; None for any."""
    name = pb.WebhookDeliveryState.Name(state).removeprefix("WEBHOOK_DELIVERY_STATE_")
    return DeliveryState(name) if state else None


def _render_type(event_type: WebhookType) -> "pb.WebhookEventType.ValueType":
    return pb.WebhookEventType.Value(f"WEBHOOK_EVENT_TYPE_{event_type.name}")


def _render_attempt(attempt: WebhookAttempt) -> pb.WebhookAttempt:
    return pb.WebhookAttempt(
        start_time=timestamp_of(attempt.start_time),
        latency=duration_of(attempt.latency),
        status_code=attempt.status_code,
        error=attempt.error,
    )
