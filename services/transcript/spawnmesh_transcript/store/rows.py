"""Parameters and rows that statements of several tables share."""

from collections.abc import Collection
from typing import Any

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.rows import Row

from spawnmesh_transcript.domain.entries import Head, StoredEntry
from spawnmesh_transcript.domain.transcripts import Key


def key_parameters(key: Key, **more: Any) -> dict[str, Any]:
    """Return the parameters of a statement about one transcript."""
    return {"tenant_id": key.tenant_id, "session_id": key.session_id, **more}


async def fetch_one(connection: Connection, statement: str, key: Key, **more: Any) -> Row | None:
    """Run a statement about one transcript and return its first row."""
    cursor = await connection.execute(statement, key_parameters(key, **more), binary=True)
    return await cursor.fetchone()


def head_of(row: Row) -> Head:
    """Return the head from a row with its columns."""
    return Head(row["incarnation"], row["seq"], row["chain_hash"], row["writer_run_id"], row["writer_epoch"])


def counted_entry(*columns: Any) -> tuple[StoredEntry, int]:
    """Take the columns of `StoredEntry` in their order and the number of entries found."""
    return StoredEntry(*columns[:-1]), columns[-1]


def runs_of(seqs: Collection[int]) -> list[tuple[int, int]]:
    """Return the first and the last seq of each run without gaps."""
    runs: list[tuple[int, int]] = []
    for seq in sorted(seqs):
        if runs and runs[-1][1] == seq - 1:
            runs[-1] = (runs[-1][0], seq)
        else:
            runs.append((seq, seq))
    return runs
