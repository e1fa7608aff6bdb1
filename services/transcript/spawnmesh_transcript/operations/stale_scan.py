"""Find the newest turn that is no longer fresh, by a scan from the end of a transcript."""

from spawnmesh_postgres.database import Connection

from spawnmesh_transcript.domain.stale_results import TailLimits, newest_stale
from spawnmesh_transcript.domain.transcripts import Key, Transcript
from spawnmesh_transcript.domain.turns import Turn
from spawnmesh_transcript.store import entries as entry_store


async def scan_newest_stale(
    connection: Connection,
    key: Key,
    transcript: Transcript,
    tail: TailLimits,
    *,
    after_seq: int,
    row_count: int,
) -> int:
    """Return the newest seq after `after_seq` that is no longer fresh, 0 if there is none.

    Reads `row_count` rows first, and then twice as many each time.
    """
    turns: list[Turn] = []
    before_seq = transcript.head.seq + 1
    while True:
        rows = await entry_store.scan_entries(
            connection, key, after_seq=after_seq, before_seq=before_seq, row_count=row_count
        )
        turns += [row.turn for row in rows if row.turn]
        stale_seq = newest_stale(
            turns, turn_count=transcript.turn_count, token_count=transcript.token_count, limits=tail
        )
        if stale_seq or len(rows) < row_count:
            return stale_seq
        before_seq = rows[-1].seq
        row_count *= 2
