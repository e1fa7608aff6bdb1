"""ArchiveService on the wire."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from spawnmesh.transcript.v1 import archive_service_pb2 as pb
from spawnmesh.transcript.v1 import archive_service_pb2_grpc as pb_grpc
from spawnmesh_core.errors import invalid
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import current_caller

from spawnmesh_transcript.announcements import Announcements
from spawnmesh_transcript.exporting import export_transcript
from spawnmesh_transcript.import_threads import ImportThreads
from spawnmesh_transcript.importing import import_transcript
from spawnmesh_transcript.parse import parse_key
from spawnmesh_transcript.payloads import Payloads

Context = grpc.aio.ServicerContext[Any, Any]

_STATES = {"IMPORTING": pb.IMPORT_STATE_IMPORTING, "COMPLETE": pb.IMPORT_STATE_COMPLETE}


class ArchiveServicer(pb_grpc.ArchiveServiceServicer):
    """Each RPC does what the contract says of it."""

    def __init__(
        self, database: Database, payloads: Payloads, announcements: Announcements, threads: ImportThreads
    ) -> None:
        self._database = database
        self._payloads = payloads
        self._announcements = announcements
        self._threads = threads

    async def ImportTranscript(
        self, request: AsyncIterator[pb.ImportTranscriptRequest], context: Context
    ) -> pb.ImportTranscriptResponse:
        first = await anext(request, None)
        if first is None or not first.HasField("spec"):
            raise invalid("spec", "comes first")
        key = parse_key(first.spec.session_id, current_caller())
        sent = first.spec.sent if first.spec.HasField("sent") else None
        progress = await import_transcript(self._database, self._payloads, self._threads, key, sent, request)
        if progress.state == "COMPLETE":
            self._announcements.changed(key)
        return pb.ImportTranscriptResponse(
            state=_STATES[progress.state],
            durable_bytes=progress.byte_count,
            line_count=progress.line_count,
            entry_count=progress.entry_count,
        )

    async def ExportTranscript(
        self, request: pb.ExportTranscriptRequest, context: Context
    ) -> AsyncIterator[pb.ExportTranscriptResponse]:
        pieces = export_transcript(
            self._database,
            self._payloads,
            parse_key(request.session_id, current_caller()),
            after_seq=request.after_seq,
            incarnation=request.incarnation,
        )
        async with aclosing(pieces):
            async for piece in pieces:
                yield pb.ExportTranscriptResponse(
                    data=piece.data, read_seq=piece.read_seq, incarnation=piece.incarnation
                )
