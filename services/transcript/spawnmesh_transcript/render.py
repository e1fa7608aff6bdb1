"""Domain values into responses."""

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as service_pb

from spawnmesh_transcript.domain.entries import Head, StoredEntry
from spawnmesh_transcript.domain.turns import Turn
from spawnmesh_transcript.operations import Appended, Context
from spawnmesh_transcript.synthetic import synthetic_result, synthetic_token_count


def render_head(head: Head) -> service_pb.Head:
    """Where a transcript stands."""
    return service_pb.Head(
        incarnation=head.incarnation,
        seq=head.seq,
        chain_hash=head.chain_hash.hex(),
        writer_run_id=head.writer_run_id,
        writer_epoch=head.writer_epoch,
    )


def render_entry(stored: StoredEntry) -> pb.Entry:
    """A stored entry; its body is read from the very bytes that were hashed."""
    entry = pb.Entry(
        entry_id=stored.entry_id,
        parent_entry_id=stored.parent_entry_id,
        seq=stored.seq,
        writer=pb.Writer(run_id=stored.writer_run_id, epoch=stored.writer_epoch, service=stored.writer_service),
        token_count=stored.token_count,
        chain_hash=stored.chain_hash.hex(),
    )
    entry.create_time.FromDatetime(stored.create_time)
    entry.body.ParseFromString(stored.body)
    return entry


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


def render_context(context: Context) -> service_pb.AssembleContextResponse:
    """Groups in their order, with an error in the place of each missing result."""
    response = service_pb.AssembleContextResponse(
        dropped_entry_count=context.dropped_entry_count, superseded_entry_count=context.superseded_entry_count
    )
    for group in context.groups:
        head = render_entry(context.entries[group.head.seq])
        response.entries.append(head)
        for result in group.results:
            if isinstance(result, Turn):
                response.entries.append(render_entry(context.entries[result.seq]))
            else:
                message = synthetic_result(head.body.message, result.call_id)
                response.entries.add(body=pb.EntryBody(message=message), token_count=synthetic_token_count())
                response.synthetic_result_count += 1
    response.token_count = sum(entry.token_count for entry in response.entries)
    return response
