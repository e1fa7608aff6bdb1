"""Entries of the run's transcript, read page by page."""

from collections.abc import AsyncGenerator

from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.loop.assignment import Assignment


async def entries_before(
    assignment: Assignment, before_seq: int, wanted: entry_pb2.EntryFilter, *, page_size: int = 0
) -> AsyncGenerator[entry_pb2.Entry, None]:
    """Yield the wanted entries before a seq, newest first. 0 means from the end."""
    request = pb.ListEntriesRequest(
        session_id=assignment.session_id, before_seq=before_seq, filter=wanted, page_size=page_size
    )
    while True:
        page = await _next_page(assignment, request)
        for entry in reversed(page.entries):
            yield entry
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


async def has_entry_after(assignment: Assignment, after_seq: int, wanted: entry_pb2.EntryFilter) -> bool:
    """Return whether the transcript has a wanted entry after a seq."""
    request = pb.ListEntriesRequest(
        session_id=assignment.session_id, after_seq=after_seq, filter=wanted, page_size=1
    )
    while True:
        page = await _next_page(assignment, request)
        if page.entries or not page.next_page_token:
            return bool(page.entries)
        request.page_token = page.next_page_token


async def _next_page(assignment: Assignment, request: pb.ListEntriesRequest) -> pb.ListEntriesResponse:
    peers = assignment.peers
    return await call_with_retry(peers.transcript, peers.transcripts.ListEntries, request)
