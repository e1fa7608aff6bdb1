"""WatchTranscript.

Streams the entries behind a cursor and the draft of the next answer, each once and in order.
"""

from collections.abc import AsyncGenerator, Iterator

from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import live_service_pb2 as pb
from spawnmesh.transcript.v1.live_event_pb2 import (
    DraftDelta,
    DraftRetracted,
    EntryAppended,
    ToolCallPiece,
)
from spawnmesh_core.call_blocks import arguments_in
from spawnmesh_core.errors import not_found
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.drafts import DraftCall, OutputKind, Piece
from spawnmesh_transcript.domain.live_feed import (
    Appended,
    Delta,
    FedEntry,
    FeedEvent,
    FeedPosition,
    LiveFeed,
    Retracted,
)
from spawnmesh_transcript.operations.change_notifier import CHANNEL, draft_topic, transcript_topic
from spawnmesh_transcript.operations.live_reads import LivePage, LivePosition
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.live_cursor import parse_cursor, render_cursor
from spawnmesh_transcript.rpc.messages import parse_key, render_entry

_POLL_SECONDS = 10.0  # For changes whose notification was lost.


async def watch_transcript(
    request: pb.WatchTranscriptRequest, caller: Caller, deps: Dependencies
) -> AsyncGenerator[pb.WatchTranscriptResponse, None]:
    """Send the position at once, and then each event behind the cursor.

    Raises INVALID_REQUEST for a cursor of another session, and NOT_FOUND as soon as the transcript
    is deleted, or has another incarnation than at the first read or in the cursor.
    """
    key = parse_key(request.session_id, caller)
    incarnation, position = parse_cursor(request.cursor, key.session_id, request.after_seq)
    feed, is_first = LiveFeed(position), True
    with deps.listener.subscription(CHANNEL, transcript_topic(key), draft_topic(key)) as changed:
        while True:
            offset = feed.wanted_offset
            page = await deps.live_reads.read(
                LivePosition(key, feed.position.seq, feed.position.draft, offset)
            )
            incarnation = incarnation or page.head.incarnation
            if page.head.incarnation != incarnation:
                raise not_found("transcript", key.session_id)
            if is_first:
                is_first = False
                yield _response(key.session_id, incarnation, feed.position)
            for response, behind in _events(feed, page):
                response.MergeFrom(_response(key.session_id, incarnation, behind))
                yield response
            needs_beginning = feed.wanted_offset < offset and feed.position.draft is not None
            if page.is_last and not needs_beginning:
                await changed.wait(_POLL_SECONDS)


def _response(session_id: str, incarnation: str, position: FeedPosition) -> pb.WatchTranscriptResponse:
    cursor = render_cursor(session_id, incarnation, position)
    return pb.WatchTranscriptResponse(cursor=cursor, read_seq=position.seq)


def _events(feed: LiveFeed, page: LivePage) -> Iterator[tuple[pb.WatchTranscriptResponse, FeedPosition]]:
    for stored in page.entries:
        entry = entry_pb2.Entry()
        render_entry(stored, entry)
        fed = FedEntry(stored.seq, stored.writer_run_id, stored.writer_epoch, _answer_of(entry))
        for event, behind in feed.take_entry(fed):
            yield _render(event, entry), behind
    if page.is_last:
        for event, behind in feed.take_draft(page.draft):
            yield _render(event, None), behind


def _answer_of(entry: entry_pb2.Entry) -> tuple[Piece, ...] | None:
    """Return the pieces of an answer; None for any other entry."""
    message = entry.body.message
    if message.role != message_pb2.ROLE_ASSISTANT:
        return None
    return tuple(piece for block in message.content if (piece := _piece_of(block)).size)


def _piece_of(block: message_pb2.ContentBlock) -> Piece:
    match block.WhichOneof("block"):
        case "thinking":
            return Piece(OutputKind.THINKING, block.thinking.text.encode())
        case "tool_call":
            call = block.tool_call
            arguments = arguments_in(call.tool_call_id, call.name, call.block_json)
            head = DraftCall(call.tool_call_id, call.name)
            return Piece(OutputKind.TOOL_CALL, arguments.encode(), head, begins_call=True)
        case _:
            return Piece(OutputKind.TEXT, block.text.text.encode())


def _render(event: FeedEvent, entry: entry_pb2.Entry | None) -> pb.WatchTranscriptResponse:
    match event:
        case Appended():
            return pb.WatchTranscriptResponse(
                entry_appended=EntryAppended(entry=entry, completes_draft=event.completes_draft)
            )
        case Delta():
            return pb.WatchTranscriptResponse(draft_delta=_render_delta(event))
        case Retracted():
            return pb.WatchTranscriptResponse(draft_retracted=DraftRetracted(run_id=event.draft.run_id))


def _render_delta(delta: Delta) -> DraftDelta:
    piece, text = delta.piece, delta.piece.text.decode()
    rendered = DraftDelta(run_id=delta.draft.run_id, model=delta.model, begins_draft=delta.begins_draft)
    match piece.kind:
        case OutputKind.TEXT:
            rendered.text = text
        case OutputKind.THINKING:
            rendered.thinking = text
        case OutputKind.TOOL_CALL if piece.call is not None:
            call = piece.call
            part = ToolCallPiece(tool_call_id=call.tool_call_id, name=call.name, arguments=text)
            part.begins_call = piece.begins_call
            rendered.tool_call.CopyFrom(part)
    return rendered
