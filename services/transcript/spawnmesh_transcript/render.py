"""Domain values into responses."""

from datetime import UTC, datetime

from spawnmesh.transcript.v1 import context_pb2 as context_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as service_pb

from spawnmesh_transcript.appending import Appended
from spawnmesh_transcript.domain.compaction import is_due
from spawnmesh_transcript.domain.dropped import LeftOut
from spawnmesh_transcript.domain.entries import Head, StoredEntry
from spawnmesh_transcript.domain.turns import Turn
from spawnmesh_transcript.domain.window import Fence
from spawnmesh_transcript.follow import News
from spawnmesh_transcript.operations import Context, Page, StubbedResult
from spawnmesh_transcript.synthetic import synthetic_result, synthetic_token_count

_EPOCH = datetime.fromtimestamp(0, UTC)


def render_head(head: Head) -> service_pb.Head:
    """Where a transcript stands."""
    return service_pb.Head(
        incarnation=head.incarnation,
        seq=head.seq,
        chain_hash=head.chain_hash.hex(),
        writer_run_id=head.writer_run_id,
        writer_epoch=head.writer_epoch,
    )


def render_entry(stored: StoredEntry, entry: pb.Entry) -> None:
    """Fills in a stored entry; its body is read from the very bytes that were hashed.

    Into a message that is in its place already, and its time without the library's calendar: a context has thousands.
    """
    entry.entry_id = stored.entry_id
    entry.parent_entry_id = stored.parent_entry_id
    entry.seq = stored.seq
    entry.token_count = stored.token_count
    entry.chain_hash = stored.chain_hash.hex()
    writer = entry.writer
    writer.run_id = stored.writer_run_id
    writer.epoch = stored.writer_epoch
    writer.service = stored.writer_service
    writer.client = stored.writer_client
    age = stored.create_time - _EPOCH
    moment = entry.create_time
    moment.seconds = age.days * 86_400 + age.seconds
    moment.nanos = age.microseconds * 1_000
    entry.body.ParseFromString(stored.body)


def render_appended(appended: Appended) -> service_pb.AppendEntriesResponse:
    """Ids and seqs in the order given."""
    return service_pb.AppendEntriesResponse(
        entries=[
            service_pb.AppendedEntry(entry_id=entry_id, seq=seq)
            for seq, entry_id in enumerate(appended.entry_ids, start=appended.first_seq)
        ],
        head=render_head(appended.head),
        replayed=appended.is_replay,
    )


def render_fence(fence: Fence) -> service_pb.Fence:
    """A fence to be handed in again."""
    return service_pb.Fence(incarnation=fence.incarnation, seq=fence.seq, chain_hash=fence.chain_hash.hex())


def render_page(page: Page) -> service_pb.ListEntriesResponse:
    """A page of entries."""
    response = service_pb.ListEntriesResponse(head=render_head(page.head), has_more=page.has_more)
    for entry in page.entries:
        render_entry(entry, response.entries.add())
    return response


def render_news(news: News) -> service_pb.FollowEntriesResponse:
    """What a follower is sent."""
    response = service_pb.FollowEntriesResponse(head=render_head(news.head), read_seq=news.read_seq)
    for entry in news.entries:
        render_entry(entry, response.entries.add())
    return response


def render_context(
    context: Context, *, token_budget: int, reserved_token_count: int
) -> service_pb.AssembleContextResponse:
    """The summary and groups in their order, with an error in the place of each missing result.

    The budget, and what is set aside of it beside what accompanies the context, are those that were asked for.
    """
    response = service_pb.AssembleContextResponse(
        dropped_entry_count=context.dropped_entry_count,
        superseded_entry_count=context.superseded_entry_count,
        accompanying_token_count=context.accompanying_token_count,
        is_estimate=context.told.is_estimate,
        token_vocabulary=context.told.vocabulary,
        stubbed=map(_render_stubbed, context.stubbed),
        dropped=map(_render_left_out, context.left_out),
    )
    missing_token_count = synthetic_token_count(context.measure)
    add = response.entries.add
    if context.summary:
        render_entry(context.summary, add())
        response.token_count += context.summary.token_count
    for group in context.groups:
        head = add()
        render_entry(context.entries[group.head.seq], head)
        response.token_count += head.token_count
        for result in group.results:
            if isinstance(result, Turn):
                render_entry(context.entries[result.seq], add())
                response.token_count += result.token_count
            else:
                message = synthetic_result(head.body.message, result.call_id)
                add(body=pb.EntryBody(message=message), token_count=missing_token_count)
                response.token_count += missing_token_count
                response.synthetic_result_count += 1
    response.fresh_seq = context.stale.seq + 1 if context.stale.seq else 0
    response.compaction_due = context.stale.is_compactable and is_due(
        context.compact_at_percent,
        has_dropped=context.dropped_entry_count > 0,
        token_count=response.token_count + reserved_token_count + context.accompanying_token_count,
        token_budget=token_budget,
    )
    return response


def _render_stubbed(stubbed: StubbedResult) -> context_pb.StubbedResult:
    return context_pb.StubbedResult(
        entry_id=stubbed.entry_id,
        seq=stubbed.seq,
        file_ids=stubbed.file_ids,
        full_token_count=stubbed.full_token_count,
    )


def _render_left_out(left_out: LeftOut) -> context_pb.DroppedEntries:
    return context_pb.DroppedEntries(
        first_seq=left_out.first_seq,
        last_seq=left_out.last_seq,
        entry_count=left_out.entry_count,
        cause=context_pb.DropCause.Value(f"DROP_CAUSE_{left_out.cause}"),
    )
