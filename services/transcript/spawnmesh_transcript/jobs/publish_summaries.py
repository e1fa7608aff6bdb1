"""Publish summaries to observers: an outbox relay.

The summary row is the outbox. It is published after its commit, and again until the hook service
has stored the event, which has the same key each time.
"""

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.hook.v1 import observed_pb2
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.peers import Peer

from spawnmesh_transcript.clients.hooks import publish_events
from spawnmesh_transcript.store import summaries as summary_store
from spawnmesh_transcript.store.summaries import UnpublishedSummary

_PAGE_ROWS = 32


async def publish_summaries(database: Database, hooks: Peer, tenant_id: str) -> int:
    """Publish AFTER_COMPACTION for each summary that is not published yet and return how many were
    published.

    Raises the hook service's MeshError.
    """
    published = 0
    while True:
        async with database.transaction(tenant_id) as connection:
            pending = await summary_store.list_unpublished_summaries(
                connection, tenant_id, row_count=_PAGE_ROWS
            )
        if not pending:
            return published
        await publish_events(hooks, tenant_id, map(_event, pending))
        async with database.transaction(tenant_id) as connection:
            await summary_store.mark_published(connection, tenant_id, pending)
        published += len(pending)


def _event(summary: UnpublishedSummary) -> observed_pb2.ObservedEvent:
    event_time = Timestamp()
    event_time.FromDatetime(summary.create_time)
    return observed_pb2.ObservedEvent(
        event_key=f"after_compaction:v1:{summary.entry_id}",
        event_time=event_time,
        session_id=summary.session_id,
        run_id=summary.run_id,
        after_compaction=observed_pb2.AfterCompactionEvent(
            entry_id=summary.entry_id,
            source_entry_count=summary.source_entry_count,
            source_token_count=summary.source_token_count,
            summary_token_count=summary.token_count,
            method=summary.method.lower(),
            model=summary.model,
            summary=pb.EntryBody.FromString(summary.body).compaction.summary,
        ),
    )
