"""Calls of the transcript service in the name of a run: its window, and its entries by pages."""

from collections.abc import AsyncGenerator, Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from spawnmesh.transcript.v1 import transcript_service_pb2 as transcripts
from spawnmesh.transcript.v1.entry_pb2 import Entry, EntryFilter
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_client import transcript_pages
from spawnmesh_client.repeated_calls import call_again

if TYPE_CHECKING:  # The context of a run makes the calls.
    from spawnmesh_client.run_context import RunContext

T = TypeVar("T")


async def transcript_call(run: "RunContext", rpc: str, request: Any) -> Any:
    """Make a call of TranscriptService that may be repeated, by the name of its RPC."""
    peer = run.mesh.wire.service("transcript")
    return await call_again(peer, getattr(TranscriptServiceStub(peer.channel), rpc), request)


async def open_window(
    run: "RunContext", context: transcripts.AssembleContextRequest
) -> transcripts.OpenWindowResponse:
    """Return the transcript's fence, and the context that a model reads under it."""
    request = transcripts.OpenWindowRequest(
        session_id=run.session.session_id, claim=run.writer, context=context
    )
    opened: transcripts.OpenWindowResponse = await transcript_call(run, "OpenWindow", request)
    return opened


async def holds_window(run: "RunContext", fence: transcripts.Fence) -> bool:
    """Return whether only this run wrote to the transcript since the fence."""
    session_id = run.session.session_id
    closing = transcripts.CloseWindowRequest(session_id=session_id, claim=run.writer, fence=fence)
    return await unless_taken_over(run, transcript_call(run, "CloseWindow", closing)) is not None


async def unless_taken_over(run: "RunContext", closing: Awaitable[T]) -> T | None:
    """Return what a call that closes a window returns; None if the run did not write alone.

    Then the run still holds the transcript, or WRITER_CLAIM_LOST is raised.
    """
    try:
        return await closing
    except MeshError as error:
        if error.reason is not Reason.SESSION_TAKEOVER:
            raise
        # Claim again: this is refused if another writer took over.
        session_id = run.session.session_id
        claiming = transcripts.AcquireWriterRequest(session_id=session_id, claim=run.writer)
        await transcript_call(run, "AcquireWriter", claiming)
        return None


def entries_before(
    run: "RunContext", before_seq: int, wanted: EntryFilter, page_size: int
) -> AsyncGenerator[Entry, None]:
    """Yield the wanted entries before a seq, newest first."""
    list_entries = partial(transcript_call, run, "ListEntries")
    return transcript_pages.entries_before(
        list_entries, run.session.session_id, before_seq, wanted, page_size
    )


async def has_entry_after(run: "RunContext", after_seq: int, wanted: EntryFilter) -> bool:
    """Return whether the transcript has a wanted entry after a seq."""
    list_entries = partial(transcript_call, run, "ListEntries")
    return await transcript_pages.has_entry_after(list_entries, run.session.session_id, after_seq, wanted)
