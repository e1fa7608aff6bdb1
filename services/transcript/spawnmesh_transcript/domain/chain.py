"""The hash chain of a transcript, which binds each entry to its place and to all entries before it.

SHA-256 is computed over these bytes, one behind the other:

1. the chain hash of the previous entry, nothing for the first entry;
2. the entry's id, its parent's id, the run, the epoch, the service, the time in microseconds since
   1970, the number of bytes of the client's name, and the client's name, each followed by a line
   feed;
3. the body as it was appended: after the redaction, and with every payload in it.

The statement `append` of the store computes the same for new entries.
"""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime.fromtimestamp(0, UTC)
_MICROSECOND = timedelta(microseconds=1)


class Linked(Protocol):
    """The fields of an entry that its chain hash covers. The body is complete."""

    @property
    def entry_id(self) -> str: ...
    @property
    def parent_entry_id(self) -> str: ...
    @property
    def writer_run_id(self) -> str: ...
    @property
    def writer_epoch(self) -> int: ...
    @property
    def writer_service(self) -> str: ...
    @property
    def writer_client(self) -> str: ...
    @property
    def create_time(self) -> datetime: ...
    @property
    def body(self) -> bytes: ...


def chain_hash(previous: bytes, entry: Linked, body: bytes | None = None) -> bytes:
    """Return the chain hash of the entry behind the entry with the hash `previous`.

    `body` replaces the entry's own body.
    """
    client = entry.writer_client.encode()
    lines = (
        entry.entry_id,
        entry.parent_entry_id,
        entry.writer_run_id,
        str(entry.writer_epoch),
        entry.writer_service,
        str((entry.create_time - _EPOCH) // _MICROSECOND),
        str(len(client)),
    )
    digest = hashlib.sha256(previous)
    digest.update("\n".join(lines).encode() + b"\n" + client + b"\n")
    digest.update(entry.body if body is None else body)
    return digest.digest()
