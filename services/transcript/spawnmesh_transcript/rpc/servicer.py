"""The gRPC services of the transcript service. Each method forwards to the module of its RPC."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from google.longrunning.operations_pb2 import Operation
from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh.transcript.v1 import activity_service_pb2_grpc as activity_pb_grpc
from spawnmesh.transcript.v1 import archive_service_pb2 as archive_pb
from spawnmesh.transcript.v1 import archive_service_pb2_grpc as archive_pb_grpc
from spawnmesh.transcript.v1 import compaction_service_pb2 as compaction_pb
from spawnmesh.transcript.v1 import compaction_service_pb2_grpc as compaction_pb_grpc
from spawnmesh.transcript.v1 import file_service_pb2 as file_pb
from spawnmesh.transcript.v1 import file_service_pb2_grpc as file_pb_grpc
from spawnmesh.transcript.v1 import integrity_service_pb2 as integrity_pb
from spawnmesh.transcript.v1 import integrity_service_pb2_grpc as integrity_pb_grpc
from spawnmesh.transcript.v1 import live_service_pb2 as live_pb
from spawnmesh.transcript.v1 import live_service_pb2_grpc as live_pb_grpc
from spawnmesh.transcript.v1 import search_service_pb2 as search_pb
from spawnmesh.transcript.v1 import search_service_pb2_grpc as search_pb_grpc
from spawnmesh.transcript.v1 import storage_service_pb2 as storage_pb
from spawnmesh.transcript.v1 import storage_service_pb2_grpc as storage_pb_grpc
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1 import transcript_service_pb2_grpc as pb_grpc
from spawnmesh_runtime.caller import current_caller

from spawnmesh_transcript.rpc.acquire_writer import acquire_writer
from spawnmesh_transcript.rpc.append_entries import append_entries
from spawnmesh_transcript.rpc.assemble_context import assemble_context
from spawnmesh_transcript.rpc.close_window import close_window
from spawnmesh_transcript.rpc.compact_as_writer import compact_as_writer
from spawnmesh_transcript.rpc.compact_transcript import compact_transcript
from spawnmesh_transcript.rpc.create_transcript import create_transcript
from spawnmesh_transcript.rpc.delete_transcript import delete_transcript
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.describe_file import describe_file
from spawnmesh_transcript.rpc.expand_summary import expand_summary
from spawnmesh_transcript.rpc.export_transcript import export_transcript
from spawnmesh_transcript.rpc.follow_entries import follow_entries
from spawnmesh_transcript.rpc.get_head_seq import get_head_seq
from spawnmesh_transcript.rpc.import_transcript import import_transcript
from spawnmesh_transcript.rpc.list_entries import list_entries
from spawnmesh_transcript.rpc.list_transcripts import list_transcripts
from spawnmesh_transcript.rpc.open_window import open_window
from spawnmesh_transcript.rpc.recount_transcript import recount_transcript
from spawnmesh_transcript.rpc.release_writer import release_writer
from spawnmesh_transcript.rpc.search_entries import search_entries
from spawnmesh_transcript.rpc.tier_transcript import tier_transcript
from spawnmesh_transcript.rpc.verify_transcript import verify_transcript
from spawnmesh_transcript.rpc.watch_activities import watch_activities
from spawnmesh_transcript.rpc.watch_transcript import watch_transcript
from spawnmesh_transcript.rpc.write_draft import write_draft

Context = grpc.aio.ServicerContext[Any, Any]


class TranscriptServicer(pb_grpc.TranscriptServiceServicer):
    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    async def CreateTranscript(
        self, request: pb.CreateTranscriptRequest, context: Context
    ) -> pb.CreateTranscriptResponse:
        return await create_transcript(request, current_caller(), self._deps)

    async def DeleteTranscript(
        self, request: pb.DeleteTranscriptRequest, context: Context
    ) -> pb.DeleteTranscriptResponse:
        return await delete_transcript(request, current_caller(), self._deps)

    async def AcquireWriter(
        self, request: pb.AcquireWriterRequest, context: Context
    ) -> pb.AcquireWriterResponse:
        return await acquire_writer(request, current_caller(), self._deps)

    async def ReleaseWriter(
        self, request: pb.ReleaseWriterRequest, context: Context
    ) -> pb.ReleaseWriterResponse:
        return await release_writer(request, current_caller(), self._deps)

    async def AppendEntries(
        self, request: pb.AppendEntriesRequest, context: Context
    ) -> pb.AppendEntriesResponse:
        return await append_entries(request, current_caller(), self._deps)

    async def OpenWindow(self, request: pb.OpenWindowRequest, context: Context) -> pb.OpenWindowResponse:
        return await open_window(request, current_caller(), self._deps)

    async def CloseWindow(self, request: pb.CloseWindowRequest, context: Context) -> pb.CloseWindowResponse:
        return await close_window(request, current_caller(), self._deps)

    async def ListEntries(self, request: pb.ListEntriesRequest, context: Context) -> pb.ListEntriesResponse:
        return await list_entries(request, current_caller(), self._deps)

    async def FollowEntries(
        self, request: pb.FollowEntriesRequest, context: Context
    ) -> AsyncIterator[pb.FollowEntriesResponse]:
        async with aclosing(follow_entries(request, current_caller(), self._deps)) as responses:
            async for response in responses:
                yield response

    async def AssembleContext(
        self, request: pb.AssembleContextRequest, context: Context
    ) -> pb.AssembleContextResponse:
        return await assemble_context(request, current_caller(), self._deps)


class LiveServicer(live_pb_grpc.LiveServiceServicer):
    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    async def WriteDraft(
        self, request: live_pb.WriteDraftRequest, context: Context
    ) -> live_pb.WriteDraftResponse:
        return await write_draft(request, current_caller(), self._deps)

    async def WatchTranscript(
        self, request: live_pb.WatchTranscriptRequest, context: Context
    ) -> AsyncIterator[live_pb.WatchTranscriptResponse]:
        async with aclosing(watch_transcript(request, current_caller(), self._deps)) as responses:
            async for response in responses:
                yield response

    async def GetHeadSeq(
        self, request: live_pb.GetHeadSeqRequest, context: Context
    ) -> live_pb.GetHeadSeqResponse:
        return await get_head_seq(request, current_caller(), self._deps)


class FileServicer(file_pb_grpc.FileServiceServicer):
    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    async def DescribeFile(
        self, request: file_pb.DescribeFileRequest, context: Context
    ) -> file_pb.DescribeFileResponse:
        return await describe_file(request, current_caller(), self._deps)


class ArchiveServicer(archive_pb_grpc.ArchiveServiceServicer):
    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    async def ImportTranscript(
        self, request: AsyncIterator[archive_pb.ImportTranscriptRequest], context: Context
    ) -> archive_pb.ImportTranscriptResponse:
        return await import_transcript(request, current_caller(), self._deps)

    async def ExportTranscript(
        self, request: archive_pb.ExportTranscriptRequest, context: Context
    ) -> AsyncIterator[archive_pb.ExportTranscriptResponse]:
        async with aclosing(export_transcript(request, current_caller(), self._deps)) as responses:
            async for response in responses:
                yield response


class SearchServicer(search_pb_grpc.SearchServiceServicer):
    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    async def SearchEntries(
        self, request: search_pb.SearchEntriesRequest, context: Context
    ) -> search_pb.SearchEntriesResponse:
        return await search_entries(request, current_caller(), self._deps)


class CompactionServicer(compaction_pb_grpc.CompactionServiceServicer):
    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    async def CompactTranscript(
        self, request: compaction_pb.CompactTranscriptRequest, context: Context
    ) -> Operation:
        return await compact_transcript(request, current_caller(), self._deps)

    async def CompactAsWriter(
        self, request: compaction_pb.CompactAsWriterRequest, context: Context
    ) -> compaction_pb.CompactAsWriterResponse:
        return await compact_as_writer(request, current_caller(), self._deps)

    async def ExpandSummary(
        self, request: compaction_pb.ExpandSummaryRequest, context: Context
    ) -> compaction_pb.ExpandSummaryResponse:
        return await expand_summary(request, current_caller(), self._deps)


class ActivityServicer(activity_pb_grpc.ActivityServiceServicer):
    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    async def WatchActivities(
        self, request: activity_pb.WatchActivitiesRequest, context: Context
    ) -> AsyncIterator[activity_pb.WatchActivitiesResponse]:
        async with aclosing(watch_activities(request, current_caller(), self._deps)) as responses:
            async for response in responses:
                yield response


class IntegrityServicer(integrity_pb_grpc.IntegrityServiceServicer):
    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    async def VerifyTranscript(
        self, request: integrity_pb.VerifyTranscriptRequest, context: Context
    ) -> AsyncIterator[integrity_pb.VerifyTranscriptResponse]:
        async with aclosing(verify_transcript(request, current_caller(), self._deps)) as responses:
            async for response in responses:
                yield response


class StorageServicer(storage_pb_grpc.StorageServiceServicer):
    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    async def ListTranscripts(
        self, request: storage_pb.ListTranscriptsRequest, context: Context
    ) -> storage_pb.ListTranscriptsResponse:
        return await list_transcripts(request, current_caller(), self._deps)

    async def TierTranscript(self, request: storage_pb.TierTranscriptRequest, context: Context) -> Operation:
        return await tier_transcript(request, current_caller(), self._deps)

    async def RecountTranscript(
        self, request: storage_pb.RecountTranscriptRequest, context: Context
    ) -> Operation:
        return await recount_transcript(request, current_caller(), self._deps)
