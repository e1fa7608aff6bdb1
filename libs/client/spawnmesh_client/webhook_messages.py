"""The messages that a webhook receives: verify that the mesh has sent them, and read them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from spawnmesh_core.webhook_signature import HeaderValue, bytes_of, verify_signature


@dataclass(frozen=True, slots=True)
class WebhookMessage:
    """A message of the mesh to a webhook.

    - `id` is the same whenever the message is sent again: keep the ids that were handled.
    - `type` is such as `run.ended`. A newer mesh has more types.
    - `time` is when the event happened, in UTC.
    - `data` has the ids, states and numbers of the event.
    """

    id: str
    type: str
    time: datetime
    data: dict[str, Any]


def verify(
    secret: str, headers: Mapping[str, HeaderValue], body: bytes | bytearray | memoryview
) -> WebhookMessage:
    """Return the message of a request, which the mesh signed with the secret in the last five
    minutes.

    `body` has the bytes as they were received. The value of a header can be bytes, too, or a list
    of several values. Raises SignatureRefused, with the cause, for any other request: answer it
    with the status 401. Raises ValueError for a secret that is not `whsec_` and base64, for a body
    that is not bytes, and for one that is signed but is no event.
    """
    message_id, content = verify_signature(secret, headers, body), bytes_of(body)
    try:
        event = json.loads(content)
        happened = datetime.fromisoformat(event["timestamp"])
        kind, data = event["type"], event["data"]
        time = happened.astimezone(UTC)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise ValueError("the body is not that of an event") from None
    if happened.tzinfo is None or not isinstance(kind, str) or not isinstance(data, dict):
        raise ValueError("the body is not that of an event")
    return WebhookMessage(message_id, kind, time, data)
