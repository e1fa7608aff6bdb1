"""ExportTranscript. Exports the transcript as a session file, from a position."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh.transcript.v1 import archive_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.operations.session_files.file_export import export_pieces
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_key


async def export_transcript(
    request: pb.ExportTranscriptRequest, caller: Caller, deps: Dependencies
) -> AsyncGenerator[pb.ExportTranscriptResponse, None]:
    """Send the session file after a position, up to the head at the time of the first page.

    All entries up to `read_seq` are in the pieces sent so far. Raises NOT_FOUND, also for another
    incarnation, and what `rehydrate_entries` and `CpuWorkers.run` raise.
    """
    key = parse_key(request.session_id, caller)
    pieces = export_pieces(
        deps.database,
        deps.blobs,
        deps.workers,
        key,
        after_seq=request.after_seq,
        incarnation=request.incarnation,
    )
    async with aclosing(pieces):
        async for piece in pieces:
            yield pb.ExportTranscriptResponse(
                data=piece.data, read_seq=piece.read_seq, incarnation=piece.incarnation
            )
