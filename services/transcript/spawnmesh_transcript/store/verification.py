"""Entries as they are verified, and how far a worker has verified a tenant's transcripts.

Each function runs in the caller's transaction.
"""

from dataclasses import dataclass
from datetime import datetime

from psycopg.rows import args_row
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.prompt_window import Fence
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.verification import ChainEntry, EntryColumns
from spawnmesh_transcript.store.rows import fetch_one, key_parameters

_SQL = load_statements(__name__)


async def list_chain_entries(
    connection: Connection, key: Key, *, first_seq: int, page_size: int, max_bytes: int
) -> tuple[list[ChainEntry], bool]:
    """Return a page of entries by seq, and whether there are more."""
    parameters = key_parameters(key, first_seq=first_seq, page_size=page_size, max_bytes=max_bytes)
    async with connection.cursor(binary=True, row_factory=args_row(_counted_entry)) as cursor:
        await cursor.execute(_SQL["list_chain_entries"], parameters)
        found = await cursor.fetchall()
    return [entry for entry, _ in found], bool(found) and found[0][1] > len(found)


async def read_chain_hash(connection: Connection, key: Key, seq: int) -> bytes:
    """Return the chain hash of the entry at a seq, empty if there is none."""
    row = await fetch_one(connection, _SQL["read_chain_hash"], key, seq=seq)
    return row["chain_hash"] if row else b""


@dataclass(frozen=True, slots=True)
class VerifiedUpTo:
    """The position from which a worker continues: behind the fence in the session's transcript, or,
    without a fence, at the transcript behind the session.
    """

    session_id: str = ""
    fence: Fence | None = None


async def read_verified(connection: Connection, tenant_id: str) -> VerifiedUpTo:
    """Return where a worker continues."""
    cursor = await connection.execute(_SQL["read_verified"], {"tenant_id": tenant_id}, binary=True)
    row = await cursor.fetchone()
    if row is None:
        return VerifiedUpTo()
    fence = Fence(row["verified_incarnation"], row["verified_seq"], row["verified_chain_hash"])
    return VerifiedUpTo(row["verified_session_id"], fence if fence.seq else None)


async def put_verified(
    connection: Connection, tenant_id: str, known: VerifiedUpTo, reached: VerifiedUpTo
) -> None:
    """Store where a worker continues, unless another worker moved on from `known`."""
    fence = reached.fence or Fence("", 0, b"")
    await connection.execute(
        _SQL["put_verified"],
        {
            "tenant_id": tenant_id,
            "session_id": reached.session_id,
            "incarnation": fence.incarnation,
            "seq": fence.seq,
            "chain_hash": fence.chain_hash,
            "known_session_id": known.session_id,
            "known_seq": known.fence.seq if known.fence else 0,
        },
    )


def _counted_entry(
    seq: int,
    entry_id: str,
    parent_entry_id: str,
    kind: str,
    role: str,
    calls: list[str],
    answers: str,
    is_synthetic: bool,
    label: str,
    target_seq: int | None,
    writer_run_id: str,
    writer_epoch: int,
    writer_service: str,
    writer_client: str,
    create_time: datetime,
    chain_hash: bytes,
    body: bytes,
    dropped_bytes: int,
    found_count: int,
) -> tuple[ChainEntry, int]:
    """Take the columns of `list_chain_entries` in their order."""
    columns = EntryColumns(kind, role, tuple(calls), answers, is_synthetic, label)
    entry = ChainEntry(
        seq,
        entry_id,
        parent_entry_id,
        columns,
        target_seq,
        writer_run_id,
        writer_epoch,
        writer_service,
        writer_client,
        create_time,
        chain_hash,
        body,
        dropped_bytes,
    )
    return entry, found_count
