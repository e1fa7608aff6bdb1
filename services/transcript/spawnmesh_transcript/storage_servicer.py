"""StorageService on the wire."""

from typing import Any

import grpc
from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh.transcript.v1 import storage_service_pb2_grpc as pb_grpc
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import current_caller

from spawnmesh_transcript import recounting, tier_store
from spawnmesh_transcript.parse import parse_key
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.tiering import DEFAULT_ENTRY_COUNT, Action, Tiering

Context = grpc.aio.ServicerContext[Any, Any]

_DEFAULT_PAGE_SIZE = 100
_ACTIONS = {
    pb.TIER_ACTION_DRY_RUN: Action.DRY_RUN,
    pb.TIER_ACTION_APPLY: Action.APPLY,
    pb.TIER_ACTION_REVERT: Action.REVERT,
}


class StorageServicer(pb_grpc.StorageServiceServicer):
    """Each RPC does what the contract says of it."""

    def __init__(self, database: Database, payloads: Payloads, tiering: Tiering) -> None:
        self._database = database
        self._payloads = payloads
        self._tiering = tiering

    async def ListTranscripts(self, request: pb.ListTranscriptsRequest, context: Context) -> pb.ListTranscriptsResponse:
        tenant_id, page_size = current_caller().tenant_id, request.page_size or _DEFAULT_PAGE_SIZE
        async with self._database.transaction(tenant_id) as connection:
            found = await tier_store.list_transcripts(
                connection, tenant_id, after_session_id=request.after_session_id, row_count=page_size + 1
            )
        return pb.ListTranscriptsResponse(
            transcripts=[pb.TranscriptSize(**size._asdict()) for size in found[:page_size]],
            has_more=len(found) > page_size,
        )

    async def TierTranscript(self, request: pb.TierTranscriptRequest, context: Context) -> pb.TierTranscriptResponse:
        report = await self._tiering.tier(
            parse_key(request.session_id, current_caller()),
            _ACTIONS[request.action],
            after_seq=request.after_seq,
            max_entry_count=request.max_entry_count or DEFAULT_ENTRY_COUNT,
        )
        return pb.TierTranscriptResponse(
            examined_entry_count=report.examined_entry_count,
            externalized_entry_count=report.externalized_entry_count,
            cooled_entry_count=report.cooled_entry_count,
            cooled_bytes=report.cooled_bytes,
            reverted_entry_count=report.reverted_entry_count,
            reverted_bytes=report.reverted_bytes,
            failed_entry_count=report.failed_entry_count,
            failure_reason=report.failure_reason,
            next_after_seq=report.next_after_seq,
            done=report.done,
        )

    async def RecountTranscript(
        self, request: pb.RecountTranscriptRequest, context: Context
    ) -> pb.RecountTranscriptResponse:
        report = await recounting.recount(
            self._database,
            self._payloads,
            parse_key(request.session_id, current_caller()),
            is_dry_run=request.dry_run,
            after_seq=request.after_seq,
            max_entry_count=request.max_entry_count or recounting.DEFAULT_ENTRY_COUNT,
        )
        return pb.RecountTranscriptResponse(
            examined_entry_count=report.examined_entry_count,
            recounted_entry_count=report.recounted_entry_count,
            token_count_before=report.token_count_before,
            token_count_after=report.token_count_after,
            token_vocabulary=report.token_vocabulary,
            next_after_seq=report.next_after_seq,
            done=report.done,
        )
