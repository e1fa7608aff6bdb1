"""SHA-256 of an open file."""

import hashlib
from typing import BinaryIO

# Of one call of a tool. Enough for anything that can be attached; hashing without a bound would let a call occupy a thread for minutes.
MAX_HASHED_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024


def sha256_of(file: BinaryIO) -> str:
    """SHA-256 of what is left to read, lower-case hex; memory stays bounded."""
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()
