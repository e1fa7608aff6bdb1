"""Reads what a summary was made of."""

from dataclasses import dataclass

from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Database

from spawnmesh_transcript import store, summary_store
from spawnmesh_transcript.domain.entries import StoredEntry
from spawnmesh_transcript.operations import PAGE_MAX_BYTES
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.store import Key
from spawnmesh_transcript.whole import whole_entries


@dataclass(frozen=True, slots=True)
class Expanded:
    """A page of sources, and where the next one goes on."""

    entries: list[StoredEntry]
    next_after_seq: int
    has_more: bool


async def expand_summary(
    database: Database, payloads: Payloads, key: Key, entry_id: str, *, after_seq: int, page_size: int
) -> Expanded:
    """The summary before, on the first page, and the messages and notes behind a seq. Raises NOT_FOUND for what is no summary here."""
    async with database.transaction(key.tenant_id) as connection:
        await store.begin_snapshot(connection)
        summary = await summary_store.find_summary(connection, key, entry_id)
        if summary is None:
            raise not_found("summary", entry_id)
        before: list[StoredEntry] = []
        if summary.previous_seq is not None and not after_seq:
            token_count = await summary_store.token_count_of(connection, key, summary.previous_seq)
            entries = await store.read_entries(connection, key, [summary.previous_seq])
            before = [entry._replace(token_count=token_count) for entry in entries]
        found, has_more = await summary_store.list_sources(
            connection,
            key,
            summary,
            after_seq=after_seq,
            page_size=max(1, page_size - len(before)),
            max_bytes=PAGE_MAX_BYTES,
        )
    if len(before) + len(found) > page_size:  # A page of one.
        found, has_more = [], True
    reached = found[-1].seq if found else max(after_seq, summary.first_source_seq - 1)
    return Expanded([*before, *await whole_entries(database, payloads, key, found)], reached, has_more)
