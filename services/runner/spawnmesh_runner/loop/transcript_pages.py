"""Entries of the run's transcript, read page by page."""

from collections.abc import AsyncGenerator

from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_client import transcript_pages

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.loop.assignment import Assignment


def entries_before(
    assignment: Assignment, before_seq: int, wanted: entry_pb2.EntryFilter, *, page_size: int = 0
) -> AsyncGenerator[entry_pb2.Entry, None]:
    """Yield the wanted entries before a seq, newest first. 0 means from the end."""
    return transcript_pages.entries_before(
        _pages_of(assignment), assignment.session_id, before_seq, wanted, page_size
    )


async def has_entry_after(assignment: Assignment, after_seq: int, wanted: entry_pb2.EntryFilter) -> bool:
    """Return whether the transcript has a wanted entry after a seq."""
    return await transcript_pages.has_entry_after(
        _pages_of(assignment), assignment.session_id, after_seq, wanted
    )


def _pages_of(assignment: Assignment) -> transcript_pages.ListEntries:
    peers = assignment.peers

    async def list_entries(request: pb.ListEntriesRequest) -> pb.ListEntriesResponse:
        return await call_with_retry(peers.transcript, peers.transcripts.ListEntries, request)

    return list_entries
