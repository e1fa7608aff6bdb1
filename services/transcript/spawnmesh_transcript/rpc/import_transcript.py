"""ImportTranscript.

Imports a file in chunks: first the spec, then the chunks in order, then finish.
"""

from collections.abc import AsyncIterator

from spawnmesh.transcript.v1 import archive_service_pb2 as pb
from spawnmesh_core.errors import invalid
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.operations.session_files.chunk_import import import_chunks
from spawnmesh_transcript.operations.session_files.line_storage import Importer
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_key

_STATES = {"IMPORTING": pb.IMPORT_STATE_IMPORTING, "COMPLETE": pb.IMPORT_STATE_COMPLETE}


async def import_transcript(
    requests: AsyncIterator[pb.ImportTranscriptRequest], caller: Caller, deps: Dependencies
) -> pb.ImportTranscriptResponse:
    """Import a session file that arrives in chunks.

    It becomes a transcript completely, or not at all.
    """
    first = await anext(requests, None)
    if first is None or not first.HasField("spec"):
        raise invalid("spec", "comes first")
    key = parse_key(first.spec.session_id, caller)
    sent = first.spec.sent if first.spec.HasField("sent") else None
    importer = Importer(deps.database, deps.blobs, deps.uploader, deps.import_threads)
    progress = await import_chunks(importer, key, sent, requests)
    if progress.state == "COMPLETE":
        deps.notifier.transcript_changed(key)
    return pb.ImportTranscriptResponse(
        state=_STATES[progress.state],
        durable_bytes=progress.byte_count,
        line_count=progress.line_count,
        entry_count=progress.entry_count,
        dialect=pb.SessionFileDialect.Value(f"SESSION_FILE_DIALECT_{progress.dialect or 'UNSPECIFIED'}"),
    )
