"""The drafts of a run's answers, written beside the run."""

from contextlib import AbstractAsyncContextManager

from spawnmesh.transcript.v1 import live_service_pb2 as pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh_client.drafts import Drafts
from spawnmesh_client.side_task import side_task
from spawnmesh_runtime.telemetry import continue_trace, unrecorded_traceparent

from spawnmesh_runner.clients.peers import Peers
from spawnmesh_runner.clients.retry import CALL_SECONDS

_LAST_CALL_SECONDS = 0.2


def written_drafts(
    drafts: Drafts, peers: Peers, session_id: str, claim: transcript_pb.WriterClaim
) -> AbstractAsyncContextManager[None]:
    """Write the drafts of the run during the block."""

    async def write(request: pb.WriteDraftRequest) -> pb.WriteDraftResponse:
        # A trace would have ten spans for each second of an answer.
        with continue_trace(unrecorded_traceparent()):
            return await peers.transcript.unary(peers.live.WriteDraft, request, timeout_seconds=CALL_SECONDS)

    work = drafts.follow(write, session_id, claim)
    return side_task(work, drafts.close, "write drafts", _LAST_CALL_SECONDS)
