"""Tells observers of summaries, behind their commits: again and again until the hook service has kept the news."""

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1 import observed_pb2
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.acting import acting_for
from spawnmesh_runtime.peers import Peer

from spawnmesh_transcript import store, summary_store
from spawnmesh_transcript.summary_store import UntoldSummary

_ROWS = 32


async def tell_summaries(database: Database, hook_peer: Peer, tenant_id: str) -> int:
    """Publishes AFTER_COMPACTION for each summary that observers do not know of yet; how many they were. Raises the hook service's MeshError."""
    told = 0
    while True:
        async with database.transaction(tenant_id) as connection:
            await store.keep_index_order(connection)
            untold = await summary_store.untold_summaries(connection, tenant_id, row_count=_ROWS)
        if not untold:
            return told
        request = hook_pb.PublishEventsRequest(events=map(_event, untold))
        with acting_for(tenant_id):
            await hook_peer.unary(HookServiceStub(hook_peer.channel).PublishEvents, request)
        async with database.transaction(tenant_id) as connection:
            await summary_store.mark_told(connection, tenant_id, untold)
        told += len(untold)


def _event(summary: UntoldSummary) -> observed_pb2.ObservedEvent:
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
