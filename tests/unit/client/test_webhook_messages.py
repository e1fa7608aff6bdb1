"""Verifying and reading the messages that a webhook receives."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from spawnmesh_client import SignatureRefused, WebhookMessage
from spawnmesh_client.webhooks import verify

from tests.support.hook.webhook_server import signed_headers

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OLD_SECRET = "whsec_plJ3nmyCDGBKInavdOK15jsl"
DATA = {"session_id": "ses_1", "run_id": "run_1", "outcome": "SUCCEEDED"}


def body_of(**changes: Any) -> bytes:
    event = {"type": "run.ended", "timestamp": "2026-11-30T03:00:00.250Z", "data": DATA} | changes
    return json.dumps({name: value for name, value in event.items() if value is not None}).encode()


def test_message_has_its_id_type_time_and_data() -> None:
    body = body_of()
    message = verify(SECRET, signed_headers(SECRET, "evt_1", body), body)
    time = datetime(2026, 11, 30, 3, 0, 0, 250_000, UTC)
    assert message == WebhookMessage("evt_1", "run.ended", time, DATA)
    assert message.time.tzinfo is UTC


def test_type_of_a_newer_mesh_is_read() -> None:
    body = body_of(type="moon.risen", timestamp="2026-11-30T03:00:00Z", data={})
    assert verify(SECRET, signed_headers(SECRET, "evt_1", body), body).type == "moon.risen"


def test_message_of_a_rotation_is_verified_with_either_secret() -> None:
    body = body_of()
    headers, old = (signed_headers(secret, "evt_1", body) for secret in (SECRET, OLD_SECRET))
    headers["Webhook-Signature"] += f" {old['Webhook-Signature']}"
    assert verify(SECRET, headers, body) == verify(OLD_SECRET, headers, body)


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"Webhook-Id": "evt_2"}, "not that of this secret and body"),
        ({"Webhook-Timestamp": "1"}, "too old"),
        ({"Webhook-Timestamp": "99999999999"}, "from the future"),
        ({"Webhook-Signature": "v1"}, "malformed"),
        ({"Webhook-Signature": ""}, "not signed"),
    ],
)
def test_request_of_another_sender_is_refused(changed: dict[str, str], cause: str) -> None:
    body = body_of()
    with pytest.raises(SignatureRefused, match=cause):
        verify(SECRET, signed_headers(SECRET, "evt_1", body) | changed, body)


def test_request_with_another_body_or_secret_is_refused() -> None:
    body = body_of()
    headers = signed_headers(SECRET, "evt_1", body)
    for secret, other in ((SECRET, body + b" "), (OLD_SECRET, body), (SECRET, b"\xff")):
        with pytest.raises(SignatureRefused):
            verify(secret, headers, other)
    with pytest.raises(ValueError, match="the secret is not `whsec_` and base64"):
        verify("whsec_1", headers, body)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        b'"text"',
        b"[" * 100_000,
        body_of(type=None),
        body_of(type=7),
        body_of(timestamp=None),
        body_of(timestamp="today"),
        body_of(timestamp=7),
        body_of(data=None),
        body_of(data=[]),
    ],
)
def test_signed_body_that_is_no_event_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="the body is not that of an event"):
        verify(SECRET, signed_headers(SECRET, "evt_1", body), body)
