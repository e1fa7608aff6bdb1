"""Renders events as messages to webhooks: ids, states, times and counts, and no content."""

import json
from datetime import UTC, datetime
from typing import Any

from google.protobuf import json_format
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh_core.clock import utc_now
from spawnmesh_core.ids import IdKind, new_id

from spawnmesh_hook.domain.webhooks import WebhookMessage, WebhookType, event_id_of
from spawnmesh_hook.operations import redaction

_ENUM_FIELDS = {"outcome": "END_OUTCOME_", "method": "SUMMARY_METHOD_"}
"""The fields whose values are enums, with the prefix that the body leaves out."""


def message_of(event: ObservedEvent, event_type: WebhookType) -> WebhookMessage:
    """Return the message for an event that was published. The same event has the same id."""
    event = redaction.without_content(event)
    happened = event.event_time.ToDatetime(tzinfo=UTC) if event.HasField("event_time") else utc_now()
    details = getattr(event, event.WhichOneof("event") or "")
    fields = json_format.MessageToDict(details, preserving_proto_field_name=True)
    for field in details.DESCRIPTOR.fields:
        if field.name not in fields:
            continue
        if field.name in _ENUM_FIELDS:
            fields[field.name] = fields[field.name].removeprefix(_ENUM_FIELDS[field.name])
        elif field.cpp_type == field.CPPTYPE_INT64:  # A text in the JSON of protos.
            fields[field.name] = int(fields[field.name])
    subject = {"session_id": event.session_id, "run_id": event.run_id, "agent_id": event.agent_id}
    data = {name: value for name, value in subject.items() if value} | fields
    return WebhookMessage(
        event_id=event_id_of(event.event_key, event.session_id),
        event_type=event_type,
        session_id=event.session_id,
        run_id=event.run_id,
        event_time=happened,
        body=_body(event_type, happened, data),
    )


def test_message(webhook: str) -> WebhookMessage:
    """Return a message for a test of the webhook with this name."""
    now = utc_now()
    return WebhookMessage(
        event_id=new_id(IdKind.EVENT),
        event_type=WebhookType.WEBHOOK_TEST,
        session_id="",
        run_id="",
        event_time=now,
        body=_body(WebhookType.WEBHOOK_TEST, now, {"webhook": webhook}),
    )


def _body(event_type: WebhookType, happened: datetime, data: dict[str, Any]) -> str:
    timestamp = f"{happened.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    body = {"type": event_type.value, "timestamp": timestamp, "data": data}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False)
