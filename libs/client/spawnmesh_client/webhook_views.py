"""Views of webhooks and of what they are sent. Types of events are texts such as `run.ended`.

The fields are named as in the contracts, which say what each one means. Times are in UTC.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import auto

from spawnmesh.hook.v1 import webhook_pb2 as pb

from spawnmesh_client.view_of import Word, enum_prefix, view_of

_ENUM = pb.WebhookEventType.DESCRIPTOR
_TYPES = {
    one.name.removeprefix(enum_prefix(_ENUM)).lower().replace("_", ".", 1): one.number
    for one in _ENUM.values
    if one.number
}
_TEXTS = {number: text for text, number in _TYPES.items()}
_UNKNOWN = "unknown"

TEST_EVENT_TYPE = _TEXTS[pb.WEBHOOK_EVENT_TYPE_WEBHOOK_TEST]
EVENT_TYPES = tuple(text for text in _TYPES if text != TEST_EVENT_TYPE)
"""The types of events that a webhook can be sent."""


class WebhookDeliveryState(Word):
    """The states of a message to a webhook."""

    UNKNOWN = auto()
    PENDING = auto()
    DELIVERED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook of the tenant. No `event_types` stands for all of them.

    A type of a newer mesh is `unknown`. `pause_reason` is empty if a person paused it.
    """

    name: str
    url: str
    event_types: tuple[str, ...]
    timeout: timedelta | None
    paused: bool
    pause_reason: str
    failing_since_time: datetime | None
    previous_secret_expire_time: datetime | None
    create_time: datetime | None
    etag: str


@dataclass(frozen=True, slots=True)
class WebhookAttempt:
    """One request to a webhook. `status_code` is 0 without an answer, and `error` then says why."""

    start_time: datetime | None
    latency: timedelta | None
    status_code: int
    error: str


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """A message to a webhook. `event_id` is its `webhook-id`.

    `attempts` are the newest ones, oldest first.
    """

    event_id: str
    event_type: str
    session_id: str
    run_id: str
    state: WebhookDeliveryState
    event_time: datetime | None
    queue_time: datetime | None
    end_time: datetime | None
    attempt_count: int
    attempts: tuple[WebhookAttempt, ...]
    body_json: str


def event_type_numbers(texts: Sequence[str]) -> "list[pb.WebhookEventType.ValueType]":
    """Return the numbers of types that a webhook can be sent.

    Raises ValueError for another text, with the known ones.
    """
    if isinstance(texts, str):
        raise ValueError(f"event_types is a list of texts, such as [{texts!r}]")
    for text in texts:
        if text not in EVENT_TYPES:
            raise ValueError(f"{text!r} is no type of events; known are {', '.join(EVENT_TYPES)}")
    return [pb.WebhookEventType.ValueType(_TYPES[text]) for text in texts]


def event_type_number(text: str) -> "pb.WebhookEventType.ValueType":
    """Return the number of a type, also of `webhook.test`; 0 for an empty text.

    Raises ValueError for another text, with the known ones.
    """
    if text and text not in _TYPES:
        known = ", ".join((*EVENT_TYPES, TEST_EVENT_TYPE))
        raise ValueError(f"{text!r} is no type of events; known are {known}")
    return pb.WebhookEventType.ValueType(_TYPES.get(text, 0))


def event_type_text(number: int) -> str:
    """Return the text of a type; `unknown` for one of a newer mesh."""
    return _TEXTS.get(number, _UNKNOWN)


def webhook_view(webhook: pb.Webhook) -> Webhook:
    """Return the view of a webhook."""
    return view_of(Webhook, webhook, event_types=tuple(map(event_type_text, webhook.event_types)))


def delivery_view(delivery: pb.WebhookDelivery) -> WebhookDelivery:
    """Return the view of a delivery."""
    return view_of(WebhookDelivery, delivery, event_type=event_type_text(delivery.event_type))
