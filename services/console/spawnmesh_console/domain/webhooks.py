"""Webhooks and their messages in words, and the form that describes a webhook."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from spawnmesh_console.domain.states import ShownState

EVENT_TYPES = {
    "session.started": "a session is ready",
    "session.ended": "a session accepts no more runs",
    "run.ended": "a run has ended in any way",
    "approval.requested": "a run waits for a person",
    "approval.escalated": "no person decided in time, and the approval waits for as long again",
    "approval.decided": "an approval was decided, has expired or was withdrawn",
    "budget.reached": "a run waits for its budget",
    "budget.changed": "the limits of a budget were changed",
    "files.published": "a run has published files",
    "transcript.compacted": "the oldest part of a transcript was summarised",
}
"""The types of events that a webhook can be sent, in words."""

TEST_TYPE = "webhook.test"
LOGGED_TYPES = (*EVENT_TYPES, TEST_TYPE)
"""The types that a log can be filtered by."""

DELIVERY_STATES = {
    "PENDING": ShownState("pending", "queued", is_live=True),
    "DELIVERED": ShownState("delivered", "succeeded"),
    "FAILED": ShownState("failed", "failed"),
}
"""The states that a log can be filtered by."""

DEFAULT_TIMEOUT = timedelta(seconds=15)
_SENDING = ShownState("sending", "succeeded")
_FAILING = ShownState("failing", "warning")
_PAUSED = ShownState("paused", "stopped")
_PAUSED_BY_MESH = ShownState("paused by the mesh", "failed")
_UNKNOWN = ShownState("unknown", "closed")
_KEPT = {"day": timedelta(days=1), "none": timedelta()}
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_SECONDS = re.compile(r"\d{1,2}(\.\d{1,3})?")
_MAX_URL_BYTES, _MAX_SECONDS = 512, 30


class WrongWebhook(ValueError):
    """A field of the form cannot be of a webhook. The text is for the person."""


@dataclass(frozen=True, slots=True)
class SentWebhook:
    """The fields of the form that creates or changes a webhook, as texts."""

    name: str = ""
    url: str = ""
    event_types: tuple[str, ...] = ()
    """Without any, it is sent all of them."""
    timeout: str = ""
    is_unreachable_allowed: bool = False

    @classmethod
    def for_webhook(
        cls, name: str, url: str, event_types: Sequence[str], timeout: timedelta | None
    ) -> "SentWebhook":
        """Return the fields that stand for a webhook as it is."""
        return cls(name, url, tuple(event_types), f"{(timeout or DEFAULT_TIMEOUT).total_seconds():g}")

    @property
    def time(self) -> timedelta:
        """The time-out. Raises WrongWebhook."""
        text = self.timeout.strip().removesuffix("s").strip()
        if not text:
            return DEFAULT_TIMEOUT
        seconds = float(text) if text.isascii() and _SECONDS.fullmatch(text) else 0
        if not 1 <= seconds <= _MAX_SECONDS:
            raise WrongWebhook("Write the time-out in seconds, from 1 to 30.")
        return timedelta(seconds=seconds)

    def check(self) -> None:
        """Raise WrongWebhook for a field that no webhook can have."""
        if not _NAME.fullmatch(self.name):
            raise WrongWebhook("Write a name of at most 63 small letters, digits and hyphens.")
        if not self.url.startswith(("https://", "http://")) or not _host(self.url):
            raise WrongWebhook("Write an address that begins with https:// and a host.")
        if len(self.url.encode("utf-8", "surrogatepass")) > _MAX_URL_BYTES:
            raise WrongWebhook("The address has at most 512 bytes.")
        if not EVENT_TYPES.keys() >= {*self.event_types}:
            raise WrongWebhook("Choose types that are in the form.")
        _ = self.time

    def differs_from(self, before: "SentWebhook") -> frozenset[str]:
        """Return the fields of the message `Webhook` in which the two differ. Raises
        WrongWebhook.
        """
        pairs = {
            "url": (self.url, before.url),
            "event_types": ({*self.event_types}, {*before.event_types}),
            "timeout": (self.time, before.time),
        }
        return frozenset(name for name, (one, other) in pairs.items() if one != other)


def webhook_state(*, is_paused: bool, pause_reason: str, is_failing: bool) -> ShownState:
    """Return whether a webhook is sent messages, and whether it receives them."""
    if is_paused:
        return _PAUSED_BY_MESH if pause_reason else _PAUSED
    return _FAILING if is_failing else _SENDING


def delivery_state(state: str) -> ShownState:
    """Return how the state of a message is shown."""
    return DELIVERY_STATES.get(state, _UNKNOWN)


def outcome_without_attempts(state: str) -> str:
    """Return what became of a message that was never sent; empty if it is pending."""
    return "given up: the webhook failed for a day" if state == "FAILED" else ""


def answer_words(status_code: int, error: str) -> str:
    """Return the outcome of a request, such as `204`, or `503: the status is no success`."""
    status = str(status_code) if status_code and str(status_code) not in error else ""
    return ": ".join(filter(None, (status, error))) or "no answer"


def time_kept(word: str) -> timedelta:
    """Return for how long the form keeps the previous secret. Raises WrongWebhook without a choice:
    a secret that others know must not sign for another day by mistake.
    """
    if word not in _KEPT:
        raise WrongWebhook("Choose whether the secret that is in use now signs for another day.")
    return _KEPT[word]


def replay_notice(count: int) -> str:
    """Return what became of a replay in a sentence."""
    if not count:
        return "There was nothing to send again."
    return "One message is sent again." if count == 1 else f"{count:,} messages are sent again."


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
