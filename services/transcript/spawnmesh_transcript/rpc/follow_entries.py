"""FollowEntries.

Streams the entries after a position, then new ones as they commit, each once and in order.
"""

from collections.abc import AsyncGenerator

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import not_found
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.entries import PagePosition
from spawnmesh_transcript.operations.change_notifier import CHANNEL, transcript_topic
from spawnmesh_transcript.operations.entry_pages import EntryPage, read_page
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_filter, parse_key, render_entry, render_head

_PAGE_SIZE = 200
_POLL_SECONDS = 5.0  # For changes whose notification was lost.


async def follow_entries(
    request: pb.FollowEntriesRequest, caller: Caller, deps: Dependencies
) -> AsyncGenerator[pb.FollowEntriesResponse, None]:
    """Send the entries after a position at once, even if there are none, and then each time there
    are more.

    Raises NOT_FOUND as soon as the transcript is deleted, or has another incarnation than at the
    first read or in the request. Polls are limited, so that many followers woken at once leave
    connections to others.
    """
    key, wanted = parse_key(request.session_id, caller), parse_filter(request.filter)
    after_seq, incarnation = request.after_seq, request.incarnation
    with deps.listener.subscription(CHANNEL, transcript_topic(key)) as changed:
        is_first = True
        while True:
            async with deps.poll_limit.hold(key.tenant_id):
                page = await read_page(
                    deps.database, deps.blobs, key, PagePosition(after_seq), wanted, page_size=_PAGE_SIZE
                )
            incarnation = incarnation or page.head.incarnation
            if page.head.incarnation != incarnation:
                raise not_found("transcript", key.session_id)
            after_seq = page.read_seq
            if page.entries or is_first:
                is_first = False
                yield _render(page, read_seq=after_seq)
            if not page.has_more:
                await changed.wait(_POLL_SECONDS)


def _render(page: EntryPage, *, read_seq: int) -> pb.FollowEntriesResponse:
    response = pb.FollowEntriesResponse(head=render_head(page.head), read_seq=read_seq)
    for entry in page.entries:
        render_entry(entry, response.entries.add())
    return response
