"""SHA-256 of an open file."""

import hashlib
from typing import BinaryIO

# The limit for one tool call. It is enough for every attachment. Without a limit a call could block
# a thread for minutes.
MAX_HASHED_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024


def sha256_of(file: BinaryIO) -> str:
    """Return the SHA-256 of the rest of the file in lower-case hex, with constant memory."""
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()
