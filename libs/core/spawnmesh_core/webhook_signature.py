"""Verify that a request comes from the mesh and is recent, as Standard Webhooks says."""

from collections.abc import Mapping

from standardwebhooks import Webhook, WebhookVerificationError
from standardwebhooks.webhooks import EmptyWebhookSecretError

SIGNATURE_AGE_SECONDS = 300
"""A signature that was made longer ago, or is as much in the future, is refused."""


class SignatureRefused(Exception):
    """The request is not authentic or not recent; the text gives the cause."""


def verify_signature(secret: str, headers: Mapping[str, str], body: bytes) -> str:
    """Return the `webhook-id` of a request that is authentic and at most five minutes old.

    Raises SignatureRefused for other requests, and ValueError for a secret that is not `whsec_` and
    base64. Header names are compared without regard to case. To detect a request that is repeated,
    keep the ids.
    """
    try:
        webhook = Webhook(secret)
    except (ValueError, EmptyWebhookSecretError):
        raise ValueError("the secret is not `whsec_` and base64") from None
    given = {name.lower(): value for name, value in headers.items()}
    try:
        webhook.verify(body, given, json_parse=False)
    except WebhookVerificationError as error:
        raise SignatureRefused(_CAUSES.get(str(error), "the signature is refused")) from None
    except ValueError:  # A signature without a comma or base64, or a text that is not UTF-8.
        raise SignatureRefused("the signature is malformed, or the body is not UTF-8") from None
    return given["webhook-id"]


_CAUSES = {
    "Missing required headers": "the request is not signed",
    "Invalid Signature Headers": "the time of the signature is malformed",
    "No matching signature found": "the signature is not that of this secret and body",
    "Message timestamp too old": "the request is too old, or the clocks differ",
    "Message timestamp too new": "the clocks differ: the request comes from the future",
}
