"""GetHeadSeq. Returns the seq of the newest entry."""

from spawnmesh.transcript.v1 import live_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_key
from spawnmesh_transcript.store import transcripts as transcript_store


async def get_head_seq(
    request: pb.GetHeadSeqRequest, caller: Caller, deps: Dependencies
) -> pb.GetHeadSeqResponse:
    """Read the seq. Raises NOT_FOUND."""
    key = parse_key(request.session_id, caller)
    async with deps.database.transaction(key.tenant_id) as connection:
        transcript = await transcript_store.get_transcript(connection, key)
    return pb.GetHeadSeqResponse(seq=transcript.head.seq)
