"""Sign webhook calls, and verify that a webhook call comes from the mesh and is recent."""

import hashlib
import hmac
import re
from collections.abc import Mapping

SIGNATURE_HEADER = "Spawnmesh-Signature"
DELIVERY_HEADER = "Spawnmesh-Delivery"
REPLAY_WINDOW_SECONDS = 300

_SIGNATURE = re.compile(r"t=(?P<time>[0-9]{1,12}),v1=(?P<mac>[0-9a-f]{64})")


class SignatureRefused(Exception):
    """The call is not authentic or not recent; the text gives the cause."""


def sign(secret: str, delivery_id: str, body: bytes, unix_seconds: int) -> str:
    """Return the value of SIGNATURE_HEADER for a call at that time."""
    return f"t={unix_seconds},v1={_mac(secret, delivery_id, body, unix_seconds)}"


def verify(secret: str, headers: Mapping[str, str], body: bytes, unix_seconds: float) -> str:
    """Return the delivery id of a call that is authentic and at most five minutes old.

    Raises SignatureRefused for other calls. Header names are compared without regard to case. To
    detect a replayed call, keep the delivery ids of the last five minutes and refuse an id that is
    repeated.
    """
    given = {name.lower(): value for name, value in headers.items()}
    found = _SIGNATURE.fullmatch(given.get(SIGNATURE_HEADER.lower(), ""))
    delivery_id = given.get(DELIVERY_HEADER.lower(), "")
    if found is None or not delivery_id:
        raise SignatureRefused("the call is not signed")
    signed_at = int(found["time"])
    if not hmac.compare_digest(found["mac"], _mac(secret, delivery_id, body, signed_at)):
        raise SignatureRefused("the signature is not that of this secret and body")
    if abs(unix_seconds - signed_at) > REPLAY_WINDOW_SECONDS:
        raise SignatureRefused("the call is too old, or the clocks differ")
    return delivery_id


def _mac(secret: str, delivery_id: str, body: bytes, unix_seconds: int) -> str:
    signed = f"{unix_seconds}.{delivery_id}.".encode() + body
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
