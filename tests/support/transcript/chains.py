"""The hash chain of a transcript as the contract describes it, for readers of `Entry`."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from spawnmesh.transcript.v1 import entry_pb2


def chain_hash(
    previous: bytes,
    body: bytes,
    *,
    entry_id: str,
    parent: str,
    run_id: str = "",
    epoch: int = 0,
    service: str = "",
    client: str = "",
    micros: int,
) -> bytes:
    """Return the chain hash of an entry behind the entry with the hash `previous`."""
    size = len(client.encode())
    lines = f"{entry_id}\n{parent}\n{run_id}\n{epoch}\n{service}\n{micros}\n{size}\n{client}\n"
    return hashlib.sha256(previous + lines.encode() + body).digest()


def micros_of(moment: datetime) -> int:
    """Return the microseconds since 1970."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def check_chain(entries: Sequence[entry_pb2.Entry]) -> None:
    """Check that the entries of a transcript, from its first one, are linked by their hashes."""
    chain = b""
    for entry in entries:
        chain = chain_hash(
            chain,
            entry.body.SerializeToString(deterministic=True),
            entry_id=entry.entry_id,
            parent=entry.parent_entry_id,
            run_id=entry.writer.run_id,
            epoch=entry.writer.epoch,
            service=entry.writer.service,
            client=entry.writer.client,
            micros=entry.create_time.ToMicroseconds(),
        )
        assert chain.hex() == entry.chain_hash
