"""Reads the entries that no search has read yet."""

import asyncio
from collections.abc import Sequence

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import not_found, unavailable
from spawnmesh_postgres.database import Database

from spawnmesh_transcript import search_store
from spawnmesh_transcript.domain.entries import StoredEntry
from spawnmesh_transcript.domain.words import pieces_of
from spawnmesh_transcript.operations import list_entries
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.store import Filter, Key, Position
from spawnmesh_transcript.texts import texts_in

_PAGE_SIZE = 500
_RETRY_SECONDS = 0.1


async def index_up_to_head(database: Database, payloads: Payloads, key: Key, *, give_up_time: float) -> None:
    """All entries that were committed before are found afterwards.

    Raises DEPENDENCY_UNAVAILABLE at the time to give up (of the monotonic clock), with what was read kept for the next; and NOT_FOUND.
    """
    wanted: int | None = None
    while True:
        async with database.transaction(key.tenant_id) as connection:
            known = await search_store.read_progress(connection, key)
        if known is None:
            raise not_found("transcript", key.session_id)
        wanted = known.head_seq if wanted is None else wanted
        if known.seq >= wanted:
            return
        if monotonic_seconds() >= give_up_time:
            raise unavailable("the words of this transcript", retry_after_seconds=_RETRY_SECONDS)
        page = await list_entries(database, payloads, key, Position(known.seq), Filter(), page_size=_PAGE_SIZE)
        if not page.entries:
            raise not_found("transcript", key.session_id)
        pieces = await asyncio.to_thread(_pieces, page.entries)
        async with database.transaction(key.tenant_id) as connection:
            await search_store.advance(connection, key, known, page.entries[-1].seq, pieces)


def _pieces(entries: Sequence[StoredEntry]) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    for entry in entries:
        texts = [text.text for text in texts_in(pb.EntryBody.FromString(entry.body))]
        found += [(entry.seq, number, words) for number, words in enumerate(pieces_of(texts))]
    return found
