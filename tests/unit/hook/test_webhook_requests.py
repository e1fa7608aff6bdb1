"""The request to a webhook: its headers, its signatures, and the pause that an answer asks for."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from spawnmesh_hook.clients.https_post import PostedBody, parse_retry_after
from spawnmesh_hook.clients.webhook_secrets import WebhookSecrets, secret_of_plugin
from spawnmesh_hook.domain.webhooks import Webhook, WebhookAttempt, WebhookType, rotated
from spawnmesh_hook.metrics import WebhookMetrics
from spawnmesh_runtime.telemetry import current_traceparent
from standardwebhooks import Webhook as Receiver
from standardwebhooks import WebhookVerificationError

NOW = datetime(2026, 11, 30, 3, tzinfo=UTC)
WEEK = timedelta(days=7)
WEBHOOK = Webhook("w", "https://host/", (), timedelta(seconds=15), webhook_id="whk_1", generation=1)
KEY = b"a key of the service"


def test_the_headers_of_a_request() -> None:
    secrets = WebhookSecrets(KEY).of_webhook("t", rotated(WEBHOOK, "r", WEEK, NOW), NOW)
    body = '{"name":"ä"}'.encode()
    headers = PostedBody("evt_1", secrets, body).headers()
    assert set(headers) == {
        "Content-Type", "Accept", "Accept-Encoding", "User-Agent", "webhook-id", "webhook-timestamp",
        "webhook-signature",
    }  # fmt: skip
    assert headers["Content-Type"] == "application/json"
    assert headers["Accept-Encoding"] == "identity"
    assert headers["webhook-id"] == "evt_1"
    signatures = headers["webhook-signature"].split(" ")
    assert [one[:3] for one in signatures] == ["v1,"] * 2
    for secret in secrets:
        assert Receiver(secret).verify(body, headers) == {"name": "ä"}
    for number, secret in enumerate(secrets):
        alone = {**headers, "webhook-signature": signatures[number]}
        assert Receiver(secret).verify(body, alone) == {"name": "ä"}, "the newest comes first"
    with pytest.raises(WebhookVerificationError):
        Receiver(secrets[0]).verify(body + b" ", headers)
    with pytest.raises(WebhookVerificationError):
        Receiver(secrets[0]).verify(body, {**headers, "webhook-id": "evt_2"})
    with pytest.raises(WebhookVerificationError):
        Receiver(secrets[0]).verify(body, {**headers, "webhook-timestamp": "1700000000"})


def test_plugins_are_told_the_trace_and_webhooks_are_not() -> None:
    secrets = WebhookSecrets(KEY).of_webhook("t", WEBHOOK, NOW)
    provider = TracerProvider()
    with provider.get_tracer("test").start_as_current_span("a"):
        current = current_traceparent()
        assert current
        assert "traceparent" not in PostedBody("evt_1", secrets, b"{}").headers()
        assert PostedBody("evt_1", secrets, b"{}", is_traced=True).headers()["traceparent"] == current
    assert "traceparent" not in PostedBody("evt_1", secrets, b"{}", is_traced=True).headers()
    provider.shutdown()


def test_each_webhook_has_its_own_secrets() -> None:
    secrets = WebhookSecrets(KEY)
    other = Webhook("w", "https://host/", (), timedelta(seconds=15), webhook_id="whk_2", generation=1)
    second = rotated(WEBHOOK, "r", timedelta(0), NOW)
    found = [
        *secrets.of_webhook("t", WEBHOOK, NOW),
        *secrets.of_webhook("u", WEBHOOK, NOW),
        *secrets.of_webhook("t", other, NOW),
        *secrets.of_webhook("t", second, NOW),
        *WebhookSecrets(b"another key").of_webhook("t", WEBHOOK, NOW),
        secret_of_plugin(KEY, "whk_1 1", "t"),
        secret_of_plugin(KEY, "w", "t"),
    ]
    assert len(set(found)) == len(found)
    assert all(one.startswith("whsec_") for one in found)


def test_requests_are_counted_by_their_result() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics = WebhookMetrics(provider.get_meter("test"))
    received = WebhookAttempt(NOW, timedelta(seconds=1), 204, "")
    for attempt in (
        received,
        replace(received, status_code=500, error="HTTP status 500"),
        replace(received, status_code=0, error="no connection"),
    ):
        metrics.record(WebhookType.RUN_ENDED, attempt)
    data = reader.get_metrics_data()
    assert data is not None
    [metric] = data.resource_metrics[0].scope_metrics[0].metrics
    assert metric.name == "spawnmesh.hook.webhook.duration"
    counted = [dict(point.attributes or {}) for point in metric.data.data_points]
    assert counted == [
        {"spawnmesh.hook.event_type": "run.ended", "spawnmesh.hook.result": result}
        for result in ("received", "refused", "no_answer")
    ]
    provider.shutdown()


@given(st.integers(min_value=0, max_value=10**60))
@example(7 * 86_400)
@example(7 * 86_400 + 1)
@example(1_000_000)
def test_a_retry_after_in_seconds(seconds: int) -> None:
    expected = timedelta(seconds=min(seconds, 7 * 86_400))
    assert parse_retry_after(str(seconds), NOW) == expected
    assert parse_retry_after(f"000{seconds}", NOW) == expected


@given(st.integers(min_value=-(10**9), max_value=10**9))
@example(0)
def test_a_retry_after_with_a_date(seconds: int) -> None:
    text = format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)
    assert parse_retry_after(text, NOW) == min(max(timedelta(seconds=seconds), timedelta(0)), WEEK)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-1",
        "+1",
        "1.5",
        "1e3",
        "0x10",
        "1 2",
        "soon",
        "²",
        "１",
        "Mon, 99 Nov 2026 99:99:99 GMT",
        "Mon",
    ],
)
def test_a_malformed_retry_after(text: str) -> None:
    assert parse_retry_after(text, NOW) is None


def test_a_retry_after_with_more_digits_than_python_parses() -> None:
    assert parse_retry_after("9" * 8_000, NOW) == WEEK
    assert parse_retry_after("0" * 8_000, NOW) == timedelta(0)


_PARTS = st.sampled_from(
    [*"0123456789:,.+- /()", "Mon", "Nov", "2026", "99", "GMT", "+2500", "-9999", "00:00", "\x00", "ä", "jan"]
)


@given(st.text() | st.lists(_PARTS, max_size=14).map("".join))
@example("Fri, 31 Dec 9999 23:59:59 -2359")
@example("Mon, 1 Jan 0001 00:00:00 +2359")
@example("1 Jan 2026 00:00:00 +99999999999999999999")
def test_any_retry_after_is_a_pause_within_bounds_or_none(text: str) -> None:
    pause = parse_retry_after(text, NOW)
    assert pause is None or timedelta(0) <= pause <= WEEK
