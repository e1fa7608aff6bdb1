"""WatchTranscript of a mesh in memory."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator

from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh.transcript.v1.live_service_pb2 import (
    DraftDelta,
    EntryAppended,
    WatchTranscriptRequest,
    WatchTranscriptResponse,
)
from spawnmesh_core.errors import invalid

from spawnmesh_client.fake_records import SessionRecord

_POLL_SECONDS = 0.01


async def watch_transcript(
    request: WatchTranscriptRequest, look: Callable[[str], SessionRecord]
) -> AsyncIterator[WatchTranscriptResponse]:
    """Yield the entries behind the cursor, and before each answer its text in two deltas.

    `look` returns the record of the session, and raises NOT_FOUND.
    """
    session_id = request.session_id
    seq, offset = _parse(request.cursor, session_id, request.after_seq)
    look(session_id)
    yield _response(session_id, seq, offset)
    while True:
        for entry in look(session_id).entries[seq:]:
            for end, delta in _deltas(entry, offset):
                yield _response(session_id, seq, end, draft_delta=delta)
            appended = EntryAppended(entry=entry, completes_draft=bool(_answer(entry)))
            seq, offset = entry.seq, 0
            yield _response(session_id, seq, offset, entry_appended=appended)
        await asyncio.sleep(_POLL_SECONDS)


def _deltas(entry: Entry, offset: int) -> Iterator[tuple[int, DraftDelta]]:
    """Yield what follows the first `offset` characters of an answer, and the offset behind it."""
    text = _answer(entry)
    for end in ((len(text) + 1) // 2, len(text)):
        if end > offset:
            begins = offset == 0
            yield end, DraftDelta(run_id=entry.writer.run_id, text=text[offset:end], begins_draft=begins)
            offset = end


def _answer(entry: Entry) -> str:
    """Return the text of an answer of a run; empty for any other entry."""
    if not entry.writer.run_id:
        return ""
    return "".join(block.text.text for block in entry.body.message.content)


def _response(
    session_id: str,
    seq: int,
    offset: int,
    *,
    draft_delta: DraftDelta | None = None,
    entry_appended: EntryAppended | None = None,
) -> WatchTranscriptResponse:
    return WatchTranscriptResponse(
        cursor=f"{session_id}-{seq}-{offset}",
        draft_delta=draft_delta,
        entry_appended=entry_appended,
        read_seq=seq,
    )


def _parse(cursor: str, session_id: str, after_seq: int) -> tuple[int, int]:
    if not cursor:
        return after_seq, 0
    found = re.fullmatch(rf"{session_id}-(\d+)-(\d+)", cursor)
    if found is None:
        raise invalid("cursor", f"is no cursor of WatchTranscript for {session_id}")
    return int(found[1]), int(found[2])
