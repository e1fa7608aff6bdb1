"""Webhooks: addresses outside of the mesh, their secrets, and when a message is sent again."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from http import HTTPStatus

from spawnmesh_core.errors import FieldViolation, MeshError
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_core.reasons import Reason

from spawnmesh_hook.domain.plugins import HookKind

DEFAULT_TIMEOUT = timedelta(seconds=15)
MAX_WEBHOOK_COUNT = 32
"""The most webhooks of a tenant."""
KEPT_ATTEMPT_COUNT = 10
"""The newest attempts of a message that its delivery keeps."""
DEFAULT_OVERLAP = timedelta(days=1)
"""The secret before a rotation signs for so long too, if the request does not say."""
LONGEST_FAILURE = timedelta(days=5)
"""A webhook that has received nothing for so long is paused."""
GONE = "it answered that it is gone (HTTP status 410)"
FAILS = "it has received nothing for five days"

CONCURRENT_REQUESTS = 4
"""The most requests to one webhook at the same time: a slow one takes no places of others."""
LONGEST_RETRY = timedelta(minutes=5)
"""The longest time without a request to a webhook that fails."""
FAILURES_TO_PAUSE = 100
"""A webhook is paused only if it has failed so often, too: one that is sent little may be well."""

_ETAG_DIGITS = 32
_DAY = timedelta(days=1)
_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (5, 30, 120, 600, 1800, 3600, 7200, 14400))
"""The pauses between the attempts of a message. The last one is repeated."""
_LONGEST_PAUSE = max(_PAUSES)
_FIRST_RETRY = timedelta(seconds=5)
_MAX_DOUBLINGS = 10


class WebhookType(StrEnum):
    """The types of events, as the body of a message spells them."""

    SESSION_STARTED = "session.started"
    SESSION_ENDED = "session.ended"
    RUN_ENDED = "run.ended"
    APPROVAL_REQUESTED = "approval.requested"
    APPROVAL_ESCALATED = "approval.escalated"
    APPROVAL_DECIDED = "approval.decided"
    BUDGET_REACHED = "budget.reached"
    BUDGET_CHANGED = "budget.changed"
    FILES_PUBLISHED = "files.published"
    TRANSCRIPT_COMPACTED = "transcript.compacted"
    WEBHOOK_TEST = "webhook.test"


TYPE_OF_HOOK = {
    HookKind.SESSION_START: WebhookType.SESSION_STARTED,
    HookKind.SESSION_END: WebhookType.SESSION_ENDED,
    HookKind.AGENT_END: WebhookType.RUN_ENDED,
    HookKind.APPROVAL_REQUESTED: WebhookType.APPROVAL_REQUESTED,
    HookKind.APPROVAL_ESCALATED: WebhookType.APPROVAL_ESCALATED,
    HookKind.APPROVAL_DECIDED: WebhookType.APPROVAL_DECIDED,
    HookKind.BUDGET_REACHED: WebhookType.BUDGET_REACHED,
    HookKind.BUDGET_CHANGED: WebhookType.BUDGET_CHANGED,
    HookKind.FILES_PUBLISHED: WebhookType.FILES_PUBLISHED,
    HookKind.AFTER_COMPACTION: WebhookType.TRANSCRIPT_COMPACTED,
}
"""The type of the events of a hook. Other events are never sent to webhooks."""


class DeliveryState(StrEnum):
    """The states of a message: PENDING, then one of the others, until it is replayed."""

    PENDING = "PENDING"
    DELIVERED = "DELIVERED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook. `webhook_id` names one life of its name: after a deletion, the name has another.

    No `event_types` stands for all of them. `generation` rises with each change, pause, resume and
    rotation.
    """

    name: str
    url: str
    event_types: tuple[WebhookType, ...]
    timeout: timedelta
    webhook_id: str = ""
    paused: bool = False
    pause_reason: str = ""
    failing_since: datetime | None = None
    failure_count: int = 0
    retry_time: datetime | None = None
    resume_time: datetime | None = None
    secret_number: int = 1
    previous_secret_until: datetime | None = None
    rotation_id: str = ""
    generation: int = 0
    create_time: datetime | None = None

    def wants(self, event_type: WebhookType) -> bool:
        """Return whether events of the type are sent to it."""
        return not self.event_types or event_type in self.event_types

    @property
    def etag(self) -> str:
        """The etag: a hash of the life of the name and its generation."""
        content = f"{self.webhook_id}:{self.generation}"
        return hashlib.sha256(content.encode()).hexdigest()[:_ETAG_DIGITS]

    @property
    def hooks(self) -> tuple[HookKind, ...]:
        """The hooks whose events it is sent."""
        return tuple(hook for hook, event_type in TYPE_OF_HOOK.items() if self.wants(event_type))

    def secret_numbers(self, now: datetime) -> Sequence[int]:
        """Return the numbers of the secrets that sign a message, the newest first."""
        if self.previous_secret_until is not None and now < self.previous_secret_until:
            return self.secret_number, self.secret_number - 1
        return (self.secret_number,)

    def is_same_content(self, other: "Webhook") -> bool:
        """Return whether both have the same of what people change."""
        return (self.url, self.event_types, self.timeout) == (other.url, other.event_types, other.timeout)


@dataclass(frozen=True, slots=True)
class WebhookAttempt:
    """One request. `error` is empty if the message was received.

    `retry_after` is the pause that the answer asked for.
    """

    start_time: datetime
    latency: timedelta
    status_code: int
    error: str
    retry_after: timedelta | None = None

    @property
    def is_gone(self) -> bool:
        """Return whether the webhook said that it takes no messages any more."""
        return self.status_code == HTTPStatus.GONE


@dataclass(frozen=True, slots=True)
class WebhookMessage:
    """A message to a webhook: its event, and the body that is signed and sent."""

    event_id: str
    event_type: WebhookType
    session_id: str
    run_id: str
    event_time: datetime
    body: str


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """A message in the log of a webhook, with its newest attempts, oldest first.

    Each replay begins another round, which has attempts of its own.
    """

    message: WebhookMessage
    state: DeliveryState
    queue_time: datetime
    attempt_time: datetime | None
    end_time: datetime | None
    round: int
    round_attempt_count: int
    attempt_count: int
    attempts: tuple[WebhookAttempt, ...]


def event_id_of(event_key: str, session_id: str) -> str:
    """Return the id of the event with this key, which sorts by the time of its session."""
    return derived_id(IdKind.EVENT, f"{event_key}:{session_id}")


def begin_of_day(webhook: Webhook, delivery: WebhookDelivery) -> datetime:
    """Return when the day of attempts of a message began: it was queued, or the webhook resumed."""
    return max(delivery.queue_time, webhook.resume_time or delivery.queue_time)


def pause_after(
    attempt_count: int, attempt: WebhookAttempt, begin_time: datetime, jitter: float
) -> timedelta | None:
    """Return the pause after a failed attempt of a round, or None if its day is over by then.

    `attempt_count` counts it too. `jitter` is a random number below one: messages that failed at
    the same time are not sent again at the same time.
    """
    pause = _PAUSES[min(attempt_count, len(_PAUSES)) - 1] * (1 + jitter / 10)
    pause = max(pause, min(attempt.retry_after or pause, _LONGEST_PAUSE))
    return pause if attempt.start_time + pause < begin_time + _DAY else None


def retry_pause(failure_count: int) -> timedelta:
    """Return the time without a request after so many failures of the webhook in a row."""
    doubled: timedelta = _FIRST_RETRY * (1 << min(failure_count - 1, _MAX_DOUBLINGS))
    return min(doubled, LONGEST_RETRY)


def expired_before(now: datetime) -> datetime:
    """Return the time at which the day of what is given up now began."""
    return now - _DAY


def pause_reason(webhook: Webhook, attempt: WebhookAttempt) -> str:
    """Return why the failed attempt pauses the webhook; empty if it does not."""
    if attempt.is_gone:
        return GONE
    since = webhook.failing_since
    has_failed = since is not None and attempt.start_time - since >= LONGEST_FAILURE
    return FAILS if has_failed and webhook.failure_count >= FAILURES_TO_PAUSE else ""


def rotated(webhook: Webhook, rotation_id: str, overlap: timedelta, now: datetime) -> Webhook:
    """Return the webhook with another secret. The same rotation changes nothing."""
    if webhook.rotation_id == rotation_id:
        return webhook
    until = now + overlap if overlap else None
    return replace(
        webhook,
        secret_number=webhook.secret_number + 1,
        previous_secret_until=until,
        rotation_id=rotation_id,
    )


def in_fixed_order(event_types: Iterable[WebhookType]) -> tuple[WebhookType, ...]:
    """Return the types in the order of their definition, so that equal sets are equal."""
    wanted = frozenset(event_types)
    return tuple(one for one in WebhookType if one in wanted)


def check_webhook_etag(field: str, etag: str, current: Webhook) -> None:
    """Raise ETAG_DIFFERS unless the etag of the field is empty or that of the webhook."""
    if etag not in ("", current.etag):
        raise MeshError(
            Reason.ETAG_DIFFERS,
            f"webhook {current.name} has changed; get it, apply the change to it, and call again with its"
            " etag",
            violations=(FieldViolation(field, "is the etag of another version"),),
            facts={"webhook": current.name, "etag": current.etag},
        )


def check_webhook_count(count: int) -> None:
    """Raise WEBHOOK_COUNT_EXCEEDED if a tenant with so many webhooks may have no further one."""
    if count >= MAX_WEBHOOK_COUNT:
        raise MeshError(
            Reason.WEBHOOK_COUNT_EXCEEDED,
            f"the tenant has {count} webhooks, and {MAX_WEBHOOK_COUNT} are allowed; delete one, or send more"
            " types of events to one",
            facts={"limit": MAX_WEBHOOK_COUNT, "webhooks": count},
        )
