"""Webhooks and their deliveries for people."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text
from spawnmesh.hook.v1 import webhook_pb2 as pb
from spawnmesh_client.budget_texts import time_text
from spawnmesh_client.webhook_views import event_type_text

from spawnmesh_command.cli.show import console, plain, print_table, when

STATE_PREFIX = "WEBHOOK_DELIVERY_STATE_"
_ALL_TYPES = "all"
_GIVEN_UP = "given up: the webhook failed for a day"


def print_webhooks(webhooks: Sequence[pb.Webhook]) -> None:
    """Print a row for each webhook."""
    print_table(
        ("webhook", "state", "events", "url"),
        ((one.name, _state(one), types_text(one.event_types), one.url) for one in webhooks),
    )


def print_webhook(webhook: pb.Webhook) -> None:
    """Print all of a webhook."""
    grid = Table.grid(padding=(0, 2))
    for name, value in _rows(webhook):
        grid.add_row(Text(name, style="dim"), Text(plain(value)))
    console().print(grid)


def print_deliveries(deliveries: Sequence[pb.WebhookDelivery]) -> None:
    """Print a row for each delivery."""
    print_table(
        ("event", "time", "type", "state", "attempts", "last"),
        (
            (
                one.event_id,
                when(one.event_time),
                event_type_text(one.event_type),
                state_word(one),
                str(one.attempt_count),
                _last_outcome(one),
            )
            for one in deliveries
        ),
    )


def attempt_line(delivery: pb.WebhookDelivery) -> str:
    """Return the state of a delivery, and the status and the latency of its last attempt."""
    if not delivery.attempts:
        return state_word(delivery)
    last = delivery.attempts[-1]
    milliseconds = last.latency.ToMicroseconds() / 1000
    return plain(f"{state_word(delivery)}: {_outcome(last)}, after {milliseconds:.1f} ms", keep="")


def state_word(delivery: pb.WebhookDelivery) -> str:
    """Return the state, such as `delivered`."""
    return pb.WebhookDeliveryState.Name(delivery.state).removeprefix(STATE_PREFIX).lower()


def types_text(event_types: Sequence[int]) -> str:
    """Return the types of events with commas, or `all` without any."""
    return ", ".join(map(event_type_text, event_types)) or _ALL_TYPES


def _last_outcome(delivery: pb.WebhookDelivery) -> str:
    if delivery.attempts:
        return _outcome(delivery.attempts[-1])
    return _GIVEN_UP if delivery.state == pb.WEBHOOK_DELIVERY_STATE_FAILED else ""


def _outcome(attempt: pb.WebhookAttempt) -> str:
    return attempt.error or f"HTTP status {attempt.status_code}"


def _rows(webhook: pb.Webhook) -> Iterator[tuple[str, str]]:
    yield "webhook", webhook.name
    yield "url", webhook.url
    yield "events", types_text(webhook.event_types)
    yield "timeout", time_text(webhook.timeout)
    yield "state", _state(webhook)
    if webhook.HasField("previous_secret_expire_time"):
        yield "previous secret", f"signs too until {when(webhook.previous_secret_expire_time)}"
    yield "created", when(webhook.create_time)
    yield "etag", webhook.etag


def _state(webhook: pb.Webhook) -> str:
    if webhook.paused:
        return f"paused: {webhook.pause_reason}" if webhook.pause_reason else "paused"
    if webhook.HasField("failing_since_time"):
        return f"failing since {when(webhook.failing_since_time)}"
    return "active"
