"""Verifying and reading the messages that a webhook receives."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_client import SignatureRefused, WebhookMessage
from spawnmesh_client.webhooks import verify

from tests.support.hook.webhook_server import signed_headers

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OLD_SECRET = "whsec_plJ3nmyCDGBKInavdOK15jsl"
OTHER_TIME = "1700000000"
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
        ({"Webhook-Signature": "v1,AAAA v2 v1,+ ,"}, "malformed"),
        ({"Webhook-Signature": ""}, "not signed"),
        ({"Webhook-Signature": None}, "not signed"),
        ({"Webhook-Id": []}, "not signed"),
        ({"Webhook-Timestamp": 1}, "not signed"),
        ({"Webhook-Timestamp": "-62135596800"}, "too old"),
        ({"Webhook-Timestamp": "253402300799"}, "from the future"),
        ({"Webhook-Timestamp": "nan"}, "time of the signature is malformed"),
        ({"Webhook-Timestamp": "1" * 400}, "time of the signature is malformed"),
        ({"webhook-id": "evt_2"}, "several ids or times"),
        ({"Webhook-Id": ["evt_1", "evt_2"]}, "several ids or times"),
        ({"webhook-timestamp": OTHER_TIME}, "several ids or times"),
        ({"Webhook-Id": "evt_\ud800"}, "not UTF-8"),
    ],
)
def test_request_of_another_sender_is_refused(changed: dict[str, Any], cause: str) -> None:
    body = body_of()
    with pytest.raises(SignatureRefused, match=cause):
        verify(SECRET, signed_headers(SECRET, "evt_1", body) | changed, body)


def test_request_with_another_body_or_secret_is_refused() -> None:
    body = body_of()
    headers = signed_headers(SECRET, "evt_1", body)
    for secret, other in ((SECRET, body + b" "), (OLD_SECRET, body), (SECRET, b"\xff")):
        with pytest.raises(SignatureRefused):
            verify(secret, headers, other)


@pytest.mark.parametrize(
    "secret",
    ["", "whsec_", "whsec_1", "whsec_!!!!", SECRET.removeprefix("whsec_"), SECRET.encode(), None],
)
def test_secret_of_another_form_is_refused(secret: Any) -> None:
    body = body_of()
    with pytest.raises(ValueError, match="the secret is not `whsec_` and base64"):
        verify(secret, signed_headers(SECRET, "evt_1", body), body)


def test_white_space_around_the_secret_is_ignored() -> None:
    body = body_of()
    assert verify(f"{SECRET}\n", signed_headers(SECRET, "evt_1", body), body).id == "evt_1"


def test_headers_and_body_are_texts_or_bytes() -> None:
    body = body_of()
    headers = signed_headers(SECRET, "evt_1", body)
    expected = verify(SECRET, headers, body)
    as_bytes = {name: value.encode() for name, value in headers.items()}
    assert verify(SECRET, as_bytes, bytearray(body)) == expected
    names_too: Any = {name.encode(): value for name, value in as_bytes.items()}
    assert verify(SECRET, names_too, memoryview(body)) == expected
    for wrong in (body.decode(), None, 7):
        with pytest.raises(ValueError, match="the body is not bytes"):
            verify(SECRET, headers, wrong)  # type: ignore[arg-type]


def test_one_entry_of_the_secret_is_enough() -> None:
    body = body_of()
    headers = signed_headers(SECRET, "evt_1", body)
    name = "Webhook-Signature"
    genuine, other = headers[name], signed_headers(OLD_SECRET, "evt_1", body)[name]
    for before in ("v1 ", "v1, ", "  ", "v1a,AAAA ", "v1,AAAA, ", "v1,\u00e4 ", "v1,a,b\t", f"{other} "):
        assert verify(SECRET, headers | {name: f"{before}{genuine}"}, body).id == "evt_1", before
        assert verify(SECRET, headers | {name: f"{genuine}  {before}"}, body).id == "evt_1", before
    for several in ([other, genuine], [genuine, other.encode()], ("v1", genuine)):
        assert verify(SECRET, {**headers, name: several}, body).id == "evt_1", several
    spelled_twice = {**headers, name: other, name.lower(): genuine, "webhook-id": "evt_1"}
    assert verify(SECRET, spelled_twice, body).id == "evt_1"


TEXTS = st.text(max_size=12) | st.sampled_from(["webhook-id", "Webhook-Timestamp", "WEBHOOK-SIGNATURE"])
PARTS = st.sampled_from(["v1,", "v1", ",", " ", "  ", "v2,AAAA", "genuine", "evt_1", "1", "-62135596800"])
VALUES = (
    TEXTS
    | st.lists(PARTS, max_size=5).map("".join)
    | st.binary(max_size=12)
    | st.lists(st.lists(PARTS, max_size=3).map("".join) | st.binary(max_size=4), max_size=3)
    | st.none()
    | st.integers()
)


@given(st.dictionaries(TEXTS | st.binary(max_size=4), VALUES, max_size=4), st.booleans(), st.data())
def test_any_headers_are_verified_or_refused(headers: Any, is_signed: bool, data: st.DataObject) -> None:
    body = body_of()
    genuine = signed_headers(SECRET, "evt_1", body)
    signature = genuine["Webhook-Signature"]
    given_headers = {name: _with(value, signature) for name, value in headers.items()}
    if is_signed:
        left_out = data.draw(st.sampled_from([*genuine, ""]))
        given_headers |= {name: value for name, value in genuine.items() if name != left_out}
    try:
        message = verify(SECRET, given_headers, body)
    except SignatureRefused:
        return
    assert (message.id, message.type) == ("evt_1", "run.ended")
    assert signature in str(given_headers)


def _with(value: Any, signature: str) -> Any:
    if isinstance(value, list):
        return [_with(one, signature) for one in value]
    return value.replace("genuine", signature) if isinstance(value, str) else value


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
        body_of(timestamp="2026-11-30T03:00:00"),
        body_of(timestamp="0001-01-01T00:00:00+01:00"),
        body_of(timestamp="9999-12-31T23:59:59.999999-01:00"),
        body_of(timestamp="\ud800"),
        body_of(data=None),
        body_of(data=[]),
    ],
)
def test_signed_body_that_is_no_event_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="the body is not that of an event"):
        verify(SECRET, signed_headers(SECRET, "evt_1", body), body)
