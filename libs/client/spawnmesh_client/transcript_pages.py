"""Entries of a transcript, read page by page with a call of the caller."""

from collections.abc import AsyncGenerator, Awaitable, Callable

from spawnmesh.transcript.v1.entry_pb2 import Entry, EntryFilter
from spawnmesh.transcript.v1.transcript_service_pb2 import ListEntriesRequest, ListEntriesResponse

ListEntries = Callable[[ListEntriesRequest], Awaitable[ListEntriesResponse]]


async def entries_before(
    list_entries: ListEntries, session_id: str, before_seq: int, wanted: EntryFilter, page_size: int = 0
) -> AsyncGenerator[Entry, None]:
    """Yield the wanted entries before a seq, newest first. 0 means from the end."""
    request = ListEntriesRequest(
        session_id=session_id, before_seq=before_seq, filter=wanted, page_size=page_size
    )
    while True:
        page = await list_entries(request)
        for entry in reversed(page.entries):
            yield entry
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


async def has_entry_after(
    list_entries: ListEntries, session_id: str, after_seq: int, wanted: EntryFilter
) -> bool:
    """Return whether the transcript has a wanted entry after a seq."""
    request = ListEntriesRequest(session_id=session_id, after_seq=after_seq, filter=wanted, page_size=1)
    while True:
        page = await list_entries(request)
        if page.entries or not page.next_page_token:
            return bool(page.entries)
        request.page_token = page.next_page_token
