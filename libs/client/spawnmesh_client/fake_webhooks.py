"""The webhooks of a FakeMesh. Nothing is sent: what would be sent is in their deliveries."""

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from itertools import count
from urllib.parse import urlsplit

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.hook.v1 import webhook_pb2 as pb
from spawnmesh.hook.v1 import webhook_service_pb2 as rpc
from spawnmesh.session.v1 import session_pb2
from spawnmesh_calls.field_masks import apply_changes, changed_paths
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import FieldViolation, MeshError, invalid, not_found
from spawnmesh_core.ids import IdKind, derived_id, new_id
from spawnmesh_core.reasons import Reason

from spawnmesh_client.fake_records import SessionRecord, now
from spawnmesh_client.webhook_views import event_type_text

_CHANGEABLE = ("url", "event_types", "timeout")
_FIXED = frozenset(pb.Webhook.DESCRIPTOR.fields_by_name) - {*_CHANGEABLE}
_OUTCOMES: "dict[session_pb2.RunState.ValueType, str]" = {
    session_pb2.RUN_STATE_SUCCEEDED: "SUCCEEDED",
    session_pb2.RUN_STATE_FAILED: "FAILED",
    session_pb2.RUN_STATE_KILLED: "KILLED",
    session_pb2.RUN_STATE_INTERRUPTED: "INTERRUPTED",
}
_DEFAULT_TIMEOUT = timedelta(seconds=15)
_DEFAULT_OVERLAP = timedelta(days=1)
_OK = 200
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(slots=True)
class FakeWebhook:
    """A webhook. `tests` are the deliveries of TestWebhook; the others are those of the events."""

    message: pb.Webhook
    secret_count: int = 1
    rotation_id: str = ""
    pause_time: Timestamp | None = None
    tests: list[pb.WebhookDelivery] = field(default_factory=list)
    replay_times: dict[str, Timestamp] = field(default_factory=dict)


class FakeWebhooks:
    """Answer the calls about webhooks. `looked_at` yields all records, after their queued runs.

    A webhook is sent the starts and ends of sessions, the ends of runs and published files. Each
    message is received at the first attempt, or when the webhook is resumed.
    """

    def __init__(self, looked_at: Callable[[], Iterator[SessionRecord]]) -> None:
        self._looked_at = looked_at
        self._webhooks: dict[str, FakeWebhook] = {}
        self._changes = count(1)

    async def UpdateWebhook(self, request: rpc.UpdateWebhookRequest) -> rpc.UpdateWebhookResponse:
        given = request.webhook
        paths = changed_paths(request.update_mask, given, _FIXED)
        current = self._webhooks.get(given.name)
        if current is None and (given.etag or not request.allow_missing):
            raise not_found("webhook", given.name)
        if current is None:
            paths = tuple((field,) for field in _CHANGEABLE)
        written = pb.Webhook(name=given.name, create_time=now())
        if current is not None:
            written.CopyFrom(current.message)
        apply_changes(paths, given, written)
        if _is_unusable(written.url):
            raise invalid("webhook.url", "must be https://host[:port]/path")
        if not written.HasField("timeout"):
            written.timeout.FromTimedelta(_DEFAULT_TIMEOUT)
        written.event_types[:] = sorted(written.event_types)
        if current is None:
            current = self._webhooks[given.name] = FakeWebhook(written)
            self._note_change(current)
        elif current.message != written:
            _check_etag("webhook.etag", given.etag, current.message)
            current.message = written
            self._note_change(current)
        return rpc.UpdateWebhookResponse(webhook=current.message, secret=_secret_of(current))

    async def GetWebhook(self, request: rpc.GetWebhookRequest) -> rpc.GetWebhookResponse:
        return rpc.GetWebhookResponse(webhook=self._webhook(request.name).message)

    async def ListWebhooks(self, request: rpc.ListWebhooksRequest) -> rpc.ListWebhooksResponse:
        found = [one.message for _, one in sorted(self._webhooks.items())]
        return rpc.ListWebhooksResponse(webhooks=found)

    async def PauseWebhook(self, request: rpc.PauseWebhookRequest) -> rpc.PauseWebhookResponse:
        webhook = self._webhook(request.name)
        if not webhook.message.paused:
            list(self._looked_at())  # Runs that are queued end before the pause.
            webhook.message.paused, webhook.pause_time = True, now()
            self._note_change(webhook)
        return rpc.PauseWebhookResponse(webhook=webhook.message)

    async def ResumeWebhook(self, request: rpc.ResumeWebhookRequest) -> rpc.ResumeWebhookResponse:
        webhook = self._webhook(request.name)
        if webhook.message.paused:
            webhook.message.paused, webhook.pause_time = False, None
            self._note_change(webhook)
        return rpc.ResumeWebhookResponse(webhook=webhook.message)

    async def DeleteWebhook(self, request: rpc.DeleteWebhookRequest) -> rpc.DeleteWebhookResponse:
        if request.name in self._webhooks:
            _check_etag("etag", request.etag, self._webhooks[request.name].message)
            del self._webhooks[request.name]
        return rpc.DeleteWebhookResponse()

    async def RotateWebhookSecret(
        self, request: rpc.RotateWebhookSecretRequest
    ) -> rpc.RotateWebhookSecretResponse:
        webhook = self._webhook(request.name)
        if webhook.rotation_id != request.request_id:
            has_time = request.HasField("keep_previous")
            overlap = request.keep_previous.ToTimedelta() if has_time else _DEFAULT_OVERLAP
            webhook.message.ClearField("previous_secret_expire_time")
            if overlap:
                webhook.message.previous_secret_expire_time.FromDatetime(utc_now() + overlap)
            webhook.rotation_id, webhook.secret_count = request.request_id, webhook.secret_count + 1
            self._note_change(webhook)
        return rpc.RotateWebhookSecretResponse(webhook=webhook.message, secret=_secret_of(webhook))

    async def TestWebhook(self, request: rpc.TestWebhookRequest) -> rpc.TestWebhookResponse:
        webhook = self._webhook(request.name)
        event = _FakeEvent(
            pb.WEBHOOK_EVENT_TYPE_WEBHOOK_TEST, new_id(IdKind.EVENT), now(), {"webhook": request.name}
        )
        webhook.tests.append(event.received())
        return rpc.TestWebhookResponse(delivery=webhook.tests[-1])

    async def ListWebhookDeliveries(
        self, request: rpc.ListWebhookDeliveriesRequest
    ) -> rpc.ListWebhookDeliveriesResponse:
        found = [
            one for one in self._deliveries(self._webhook(request.name))
            if request.state in (pb.WEBHOOK_DELIVERY_STATE_UNSPECIFIED, one.state)
            and request.event_type in (pb.WEBHOOK_EVENT_TYPE_UNSPECIFIED, one.event_type)
            and request.session_id in ("", one.session_id)
            and one.event_time.ToNanoseconds() >= request.start_time.ToNanoseconds()
            and not (request.HasField("end_time") and not _is_before(one.event_time, request.end_time))
        ]  # fmt: skip
        return rpc.ListWebhookDeliveriesResponse(deliveries=found)

    async def ReplayWebhookDeliveries(
        self, request: rpc.ReplayWebhookDeliveriesRequest
    ) -> rpc.ReplayWebhookDeliveriesResponse:
        webhook = self._webhook(request.name)
        known = {one.event_id: one for one in self._deliveries(webhook)}
        for event_id in request.events.event_ids:
            if event_id not in known:
                raise not_found("webhook message", event_id)
        ended = [
            event_id for event_id in request.events.event_ids
            if known[event_id].state != pb.WEBHOOK_DELIVERY_STATE_PENDING
            and known[event_id].event_type != pb.WEBHOOK_EVENT_TYPE_WEBHOOK_TEST
        ]  # fmt: skip
        webhook.replay_times |= dict.fromkeys(ended, now())
        return rpc.ReplayWebhookDeliveriesResponse(replayed_count=len(ended))

    def _webhook(self, name: str) -> FakeWebhook:
        if name not in self._webhooks:
            raise not_found("webhook", name)
        return self._webhooks[name]

    def _note_change(self, webhook: FakeWebhook) -> None:
        webhook.message.etag = hashlib.sha256(str(next(self._changes)).encode()).hexdigest()[:32]

    def _deliveries(self, webhook: FakeWebhook) -> list[pb.WebhookDelivery]:
        """Return the deliveries of the events since the webhook was created, newest first."""
        wanted = webhook.message.event_types
        events = [
            event
            for record in self._looked_at()
            for event in _events_of(record)
            if (not wanted or event.event_type in wanted)
            and not _is_before(event.time, webhook.message.create_time)
        ]
        found = [*webhook.tests, *(_delivery(event, webhook) for event in events)]
        return sorted(found, key=lambda one: (one.event_time.ToNanoseconds(), one.event_id), reverse=True)


@dataclass(frozen=True, slots=True)
class _FakeEvent:
    """An event with its data."""

    event_type: "pb.WebhookEventType.ValueType"
    event_id: str
    time: Timestamp
    data: dict[str, str | int]

    def pending(self) -> pb.WebhookDelivery:
        """Return the delivery without an attempt."""
        text = self.time.ToDatetime(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = {"type": event_type_text(self.event_type), "timestamp": text, "data": self.data}
        return pb.WebhookDelivery(
            event_id=self.event_id, event_type=self.event_type,
            session_id=str(self.data.get("session_id", "")), run_id=str(self.data.get("run_id", "")),
            state=pb.WEBHOOK_DELIVERY_STATE_PENDING, event_time=self.time, queue_time=self.time,
            body_json=json.dumps(body, separators=(",", ":")),
        )  # fmt: skip

    def received(self) -> pb.WebhookDelivery:
        """Return the delivery that was received at the first attempt."""
        delivery = self.pending()
        delivery.state, delivery.attempt_count = pb.WEBHOOK_DELIVERY_STATE_DELIVERED, 1
        delivery.end_time.CopyFrom(self.time)
        attempt = delivery.attempts.add(start_time=self.time, status_code=_OK)
        attempt.latency.FromMilliseconds(1)
        return delivery


def _events_of(record: SessionRecord) -> Iterator[_FakeEvent]:
    """Yield the events of a session that webhooks are sent."""
    session = record.session
    of_session: dict[str, str | int] = {"session_id": session.session_id, "agent_id": session.agent_id}
    of_start = dict(of_session)
    if session.parent_session_id:
        of_start["parent_session_id"] = session.parent_session_id
    files: dict[str, dict[str, str | int]] = {
        one.set_id: {
            "set_id": one.set_id, "file_count": len(one.files), "total_bytes": one.total_bytes
        }
        for one, _ in record.outputs
    }  # fmt: skip
    has_started = False
    for event in record.events:
        data, kind = dict(of_session), pb.WEBHOOK_EVENT_TYPE_UNSPECIFIED
        if event.run_id:
            data["run_id"] = event.run_id
        if event.kind == session_pb2.SESSION_EVENT_KIND_CLOSED:
            kind = pb.WEBHOOK_EVENT_TYPE_SESSION_ENDED
        elif event.kind == session_pb2.SESSION_EVENT_KIND_FILES_PUBLISHED:
            kind = pb.WEBHOOK_EVENT_TYPE_FILES_PUBLISHED
            data |= files[event.set_id]
        elif event.run_state in _OUTCOMES:
            kind = pb.WEBHOOK_EVENT_TYPE_RUN_ENDED
            data |= {"outcome": _OUTCOMES[event.run_state]}
        elif event.run_id and not has_started:
            kind, has_started, data = pb.WEBHOOK_EVENT_TYPE_SESSION_STARTED, True, of_start
        if kind:
            event_id = derived_id(IdKind.EVENT, f"{event.number}:{session.session_id}")
            yield _FakeEvent(kind, event_id, event.event_time, data)


def _delivery(event: _FakeEvent, webhook: FakeWebhook) -> pb.WebhookDelivery:
    """Return the delivery as it is now."""
    if webhook.pause_time is not None and not _is_before(event.time, webhook.pause_time):
        return event.pending()
    delivery = event.received()
    if event.event_id in webhook.replay_times:
        delivery.queue_time.CopyFrom(webhook.replay_times[event.event_id])
        delivery.end_time.CopyFrom(delivery.queue_time)
        delivery.attempt_count = 2
        delivery.attempts.add(start_time=delivery.queue_time, status_code=_OK)
    return delivery


def _is_unusable(url: str) -> bool:
    """Return True for a URL that is neither one of HTTPS nor one of HTTP on loopback."""
    try:
        found = urlsplit(url)
        is_local = found.scheme == "http" and found.hostname in _LOOPBACK
        return not found.hostname or not (found.scheme == "https" or is_local)
    except ValueError:
        return True


def _is_before(time: Timestamp, other: Timestamp) -> bool:
    return time.ToNanoseconds() < other.ToNanoseconds()


def _secret_of(webhook: FakeWebhook) -> str:
    message = webhook.message
    source = f"{message.name}:{message.create_time.ToNanoseconds()}:{webhook.secret_count}"
    return f"whsec_{b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


def _check_etag(field: str, etag: str, current: pb.Webhook) -> None:
    if etag not in ("", current.etag):
        raise MeshError(
            Reason.ETAG_DIFFERS,
            f"webhook {current.name} has changed; get it, apply the change to it, and call again with its"
            " etag",
            violations=(FieldViolation(field, "is the etag of another version"),),
            facts={"webhook": current.name, "etag": current.etag},
        )
