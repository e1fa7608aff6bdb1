"""The file by which a mesh on one machine signs a person in.

It holds a token, and the SHA-256 of a code that only the printed link has.
"""

import hashlib
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path


def take_token(file: Path, code: str) -> str | None:
    """Return the token for the code, and delete the file. None for another code, or without a file.

    Of two callers with the right code, one gets the token.
    """
    try:
        stored = json.loads(file.read_text())
        digest, token = stored["code_sha256"], stored["token"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not secrets.compare_digest(_digest(code).encode(), str(digest).encode()):
        return None
    taken = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        file.rename(taken)
    except OSError:
        return None
    is_same = json.loads(taken.read_text()) == stored
    if not is_same:  # It was replaced meanwhile: the newer link stays usable.
        with suppress(OSError):
            os.link(taken, file)
    taken.unlink()
    return str(token) if is_same else None


def offer_token(file: Path, token: str) -> str:
    """Write the file (0600) atomically in place of an earlier one, and return the code."""
    code = secrets.token_urlsafe(24)
    half = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        json.dump({"code_sha256": _digest(code), "token": token}, stream)
    half.rename(file)
    return code


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
