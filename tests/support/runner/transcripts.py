"""The transcript service, as far as a runner calls it."""

from typing import TYPE_CHECKING, Any

from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import file_service_pb2 as file_pb
from spawnmesh.transcript.v1 import file_service_pb2_grpc as file_grpc
from spawnmesh.transcript.v1 import live_service_pb2 as live_pb
from spawnmesh.transcript.v1 import live_service_pb2_grpc as live_grpc
from spawnmesh.transcript.v1 import search_service_pb2 as search_pb
from spawnmesh.transcript.v1 import search_service_pb2_grpc as search_grpc
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1 import transcript_service_pb2_grpc as transcript_grpc
from spawnmesh.transcript.v1.live_event_pb2 import DraftPiece
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

if TYPE_CHECKING:
    from tests.support.runner.scripted_mesh import ScriptedMesh

_OWN_ROLES = (message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_TOOL_RESULT)


class ScriptedTranscripts(transcript_grpc.TranscriptServiceServicer):
    """Keep one writer, append each key once, and break windows on other writers' entries."""

    def __init__(self, mesh: "ScriptedMesh") -> None:
        self.mesh = mesh

    def _check_claim(self, claim: transcript_pb.WriterClaim) -> None:
        if claim.epoch < self.mesh.writer_epoch:
            raise MeshError(Reason.WRITER_CLAIM_LOST, "another writer holds the transcript")

    async def AcquireWriter(
        self, request: transcript_pb.AcquireWriterRequest, context: Any
    ) -> transcript_pb.AcquireWriterResponse:
        self._check_claim(request.claim)
        self.mesh.writer_epoch = request.claim.epoch
        return transcript_pb.AcquireWriterResponse()

    async def ReleaseWriter(
        self, request: transcript_pb.ReleaseWriterRequest, context: Any
    ) -> transcript_pb.ReleaseWriterResponse:
        self.mesh.released_claims.append(request.claim.epoch)
        return transcript_pb.ReleaseWriterResponse()

    async def OpenWindow(
        self, request: transcript_pb.OpenWindowRequest, context: Any
    ) -> transcript_pb.OpenWindowResponse:
        self.mesh.refuse_if_scripted("OpenWindow")
        self._check_claim(request.claim)
        self.mesh.writer_epoch = request.claim.epoch
        self.mesh.window_seqs.append(len(self.mesh.entries))
        read = await self.AssembleContext(request.context, context)
        return transcript_pb.OpenWindowResponse(fence=self._fence(), context=read)

    async def CloseWindow(
        self, request: transcript_pb.CloseWindowRequest, context: Any
    ) -> transcript_pb.CloseWindowResponse:
        self.mesh.refuse_if_scripted("CloseWindow")
        self._check_window(request.claim, request.fence)
        return transcript_pb.CloseWindowResponse(fence=self._fence())

    def _check_window(self, claim: transcript_pb.WriterClaim, fence: transcript_pb.Fence) -> None:
        own = (claim.run_id, claim.epoch)
        for entry in self.mesh.entries[fence.seq :]:
            role = entry.body.message.role
            if (entry.writer.run_id, entry.writer.epoch) != own or role not in _OWN_ROLES:
                raise MeshError(Reason.SESSION_TAKEOVER, "not its own", facts={"offending_seq": entry.seq})
        self._check_claim(claim)
        self.mesh.closed_window_count += 1

    def _fence(self) -> transcript_pb.Fence:
        return transcript_pb.Fence(incarnation="inc", seq=max(len(self.mesh.entries), 1), chain_hash="0" * 64)

    async def AppendEntries(
        self, request: transcript_pb.AppendEntriesRequest, context: Any
    ) -> transcript_pb.AppendEntriesResponse:
        stored = b"".join(body.SerializeToString(deterministic=True) for body in request.entries)
        replayed = request.request_id in self.mesh.appended
        if replayed:
            known, entries = self.mesh.appended[request.request_id]
            if known != stored:
                raise MeshError(Reason.REQUEST_ID_REUSED, "other entries")
        else:
            self._check_claim(request.claim)
            blocks = [block for body in request.entries for block in body.message.content]
            if request.HasField("fence"):
                self._check_window(request.claim, request.fence)
            if any('"$redacted"' in block.tool_call.block_json for block in blocks):
                raise MeshError(Reason.ATTACHMENT_CONTENT_IS_MARKER, "a marker came back as content")
            entries = [
                self.mesh.store(body, request.claim.run_id, request.claim.epoch) for body in request.entries
            ]
            self.mesh.appended[request.request_id] = stored, entries
        self.mesh.refuse_if_scripted("AppendEntries")
        appended = [transcript_pb.AppendedEntry(entry_id=entry.entry_id, seq=entry.seq) for entry in entries]
        return transcript_pb.AppendEntriesResponse(entries=appended, replayed=replayed)

    async def ListEntries(
        self, request: transcript_pb.ListEntriesRequest, context: Any
    ) -> transcript_pb.ListEntriesResponse:
        return self.mesh.listing.page(self.mesh.entries, request)

    async def AssembleContext(
        self, request: transcript_pb.AssembleContextRequest, context: Any
    ) -> transcript_pb.AssembleContextResponse:
        self.mesh.assembled.append(request)
        entries = [entry for entry in self.mesh.entries if entry.entry_id not in self.mesh.superseded]
        return transcript_pb.AssembleContextResponse(entries=entries, stubbed=self.mesh.stubbed)


class ScriptedDrafts(live_grpc.LiveServiceServicer):
    """Keep the pieces of each draft, and its text, by its number."""

    def __init__(self, mesh: "ScriptedMesh") -> None:
        self.mesh = mesh

    async def WriteDraft(
        self, request: live_pb.WriteDraftRequest, context: Any
    ) -> live_pb.WriteDraftResponse:
        mesh = self.mesh
        mesh.draft_calls.append(request)
        if mesh.hold_draft is not None:
            await mesh.hold_draft.wait()
        mesh.refuse_if_scripted("WriteDraft")
        assert (request.session_id, request.claim.run_id) == (mesh.session_id, mesh.run_id)
        pieces = mesh.draft_pieces[request.number]
        if request.offset == _size_of(pieces):
            pieces.extend(request.pieces)
            mesh.drafts[request.number] = "".join(piece.text for piece in pieces)
        size = _size_of(pieces)
        return live_pb.WriteDraftResponse(end_offset=size, accepts_more=size < mesh.max_draft_bytes)


def _size_of(pieces: list[DraftPiece]) -> int:
    parts = [piece.tool_call for piece in pieces if piece.tool_call.begins_call]
    heads = [f"{part.tool_call_id}\0{part.name}\0" for part in parts]
    said = [piece.text + piece.thinking + piece.tool_call.arguments for piece in pieces]
    return len("".join([*heads, *said]).encode())


class ScriptedFiles(file_grpc.FileServiceServicer):
    """Every file is the same text."""

    def __init__(self, mesh: "ScriptedMesh") -> None:
        self.mesh = mesh

    async def DescribeFile(
        self, request: file_pb.DescribeFileRequest, context: Any
    ) -> file_pb.DescribeFileResponse:
        self.mesh.refuse_if_scripted("DescribeFile")
        described = file_pb.DescribeFileResponse(file_id=request.file_id, mime_type="text/plain")
        described.content.data = b"an earlier output"
        return described


class ScriptedSearches(search_grpc.SearchServiceServicer):
    """Nothing is ever found."""

    def __init__(self, mesh: "ScriptedMesh") -> None:
        self.mesh = mesh

    async def SearchEntries(
        self, request: search_pb.SearchEntriesRequest, context: Any
    ) -> search_pb.SearchEntriesResponse:
        self.mesh.refuse_if_scripted("SearchEntries")
        return search_pb.SearchEntriesResponse()
