"""Verify that a request comes from the mesh and is recent, as Standard Webhooks says."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from standardwebhooks import Webhook

SIGNATURE_AGE_SECONDS = 300
"""A signature that was made longer ago, or is as much in the future, is refused."""

HeaderValue = str | bytes | Sequence[str | bytes]
"""The value of a header, or the values of one that is there several times."""

_ID, _TIME, _SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
_SECRET = re.compile(r"whsec_[A-Za-z0-9+/]+={0,2}")
_ENTRY = re.compile(r"v1,[A-Za-z0-9+/]{43}=")
"""An entry that the library can compare: `v1,` and the base64 of 32 bytes."""


class SignatureRefused(Exception):
    """The request is not authentic or not recent; the text gives the cause."""


def verify_signature(
    secret: str, headers: Mapping[str, HeaderValue], body: bytes | bytearray | memoryview
) -> str:
    """Return the `webhook-id` of a request that is authentic and at most five minutes old.

    Raises SignatureRefused for other requests, and ValueError for a secret that is not `whsec_` and
    base64, and for a body that is not bytes; ImportError without the package `standardwebhooks`,
    which the client has as an extra. Header names are compared without regard to case. To
    detect a request that is repeated, keep the ids.

    One signature of the secret is enough. Entries of other versions and malformed ones are skipped.
    """
    webhook, content = _webhook_of(secret), bytes_of(body)
    from standardwebhooks import WebhookVerificationError

    found: dict[str, list[str]] = {_ID: [], _TIME: [], _SIGNATURE: []}
    for name, value in headers.items():
        for key in _texts(name):
            found.get(key.lower(), []).extend(_texts(value))
    # The library refuses all of a header with a malformed entry, and signs once for each call: an
    # attacker could send many entries.
    entries = [one for text in found[_SIGNATURE] for one in text.split() if _ENTRY.fullmatch(one)]
    if any(found[_SIGNATURE]) and not entries:
        raise SignatureRefused("the signature is malformed, or of another version")
    if any(len({*found[name]}) > 1 for name in (_ID, _TIME)):
        raise SignatureRefused("the request has several ids or times")
    given = {name: "".join(found[name][:1]) for name in (_ID, _TIME)}
    try:
        webhook.verify(content, {**given, _SIGNATURE: " ".join(entries)}, json_parse=False)
    except WebhookVerificationError as error:
        raise SignatureRefused(_CAUSES.get(str(error), "the signature is refused")) from None
    except ValueError:  # A text that cannot be signed.
        raise SignatureRefused("the id or the body is not UTF-8") from None
    return given[_ID]


def bytes_of(body: bytes | bytearray | memoryview) -> bytes:
    """Return the bytes of a body. Raise ValueError for another kind of object, such as a text."""
    try:
        return bytes(memoryview(body))
    except TypeError:
        raise ValueError("the body is not bytes, as they were received") from None


def _webhook_of(secret: str) -> "Webhook":
    try:  # Most users of the client verify nothing, and need no further package.
        from standardwebhooks import Webhook
    except ImportError as error:
        raise ImportError(
            "to verify webhooks, install the extra: pip install 'spawnmesh-client[webhooks]'"
        ) from error
    try:
        if isinstance(secret, str) and _SECRET.fullmatch(secret.strip()):
            return Webhook(secret.strip())
    except ValueError:  # Its length is not that of base64.
        pass
    raise ValueError("the secret is not `whsec_` and base64")


def _texts(value: object) -> Iterator[str]:
    """Yield the texts of a header's name or value. Other kinds of objects have none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("latin-1")
    elif isinstance(value, list | tuple):
        for one in value:
            if isinstance(one, str | bytes):
                yield from _texts(one)


_CAUSES = {
    "Missing required headers": "the request is not signed",
    "Invalid Signature Headers": "the time of the signature is malformed",
    "No matching signature found": "the signature is not that of this secret and body",
    "Message timestamp too old": "the request is too old, or the clocks differ",
    "Message timestamp too new": "the clocks differ: the request comes from the future",
}
