"""The key in each form, by which the console knows its own.

A page has another text for it each time. Otherwise the length of the compressed page would tell
the key to an observer, who can choose other parts of the page.
"""

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode


def masked(form_key: str) -> str:
    """Return a new text for the key."""
    key = form_key.encode()
    mask = secrets.token_bytes(len(key))
    return urlsafe_b64encode(mask + _xor(mask, key)).decode()


def is_masked(text: str, form_key: str) -> bool:
    """Return whether the text stands for the key."""
    try:
        mixed = urlsafe_b64decode(text)
    except ValueError:
        return False
    half = len(mixed) // 2
    return secrets.compare_digest(_xor(mixed[:half], mixed[half:]), form_key.encode())


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=False))
