"""Pages of a transcript, and single entries."""

from dataclasses import dataclass

from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1.transcript_service_pb2 import ListEntriesRequest
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_client.client import Mesh
from spawnmesh_core.errors import NotFound, not_found

PAGE_SIZE = 100
_MAX_SEQ = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TranscriptPage:
    """Entries that follow each other, lowest seq first, and the newest seq of the transcript."""

    entries: list[entry_pb2.Entry]
    head_seq: int

    @property
    def first_seq(self) -> int:
        """The first seq of the page; 0 on an empty one."""
        return self.entries[0].seq if self.entries else 0

    @property
    def last_seq(self) -> int:
        """The last seq of the page; 0 on an empty one."""
        return self.entries[-1].seq if self.entries else 0

    @property
    def is_newest(self) -> bool:
        """True if no entry follows."""
        return self.last_seq >= self.head_seq


async def newest_entries(mesh: Mesh, session_id: str, *, before_seq: int = 0) -> TranscriptPage:
    """Return the newest entries, or the newest before a seq; none without a transcript."""
    try:
        return await _page(mesh, ListEntriesRequest(session_id=session_id, before_seq=before_seq))
    except NotFound:
        return TranscriptPage([], 0)


async def entries_from(
    mesh: Mesh, session_id: str, first_seq: int, *, page_size: int = PAGE_SIZE
) -> TranscriptPage:
    """Return the entries from a seq on; none without a transcript."""
    try:
        request = ListEntriesRequest(session_id=session_id, after_seq=max(0, first_seq - 1))
        return await _page(mesh, request, page_size=page_size)
    except NotFound:
        return TranscriptPage([], 0)


async def one_entry(mesh: Mesh, session_id: str, seq: int) -> entry_pb2.Entry:
    """Return the entry with this seq. Raises NotFound."""
    if not 0 < seq <= _MAX_SEQ:
        raise not_found("entry", str(seq))
    request = ListEntriesRequest(session_id=session_id, after_seq=seq - 1)
    page = await _page(mesh, request, page_size=1)
    if page.first_seq != seq:
        raise not_found("entry", str(seq))
    return page.entries[0]


async def _page(mesh: Mesh, request: ListEntriesRequest, *, page_size: int = PAGE_SIZE) -> TranscriptPage:
    request.page_size = page_size
    peer = mesh.wire.service("transcript")
    answer = await peer.unary(TranscriptServiceStub(peer.channel).ListEntries, request)
    return TranscriptPage(list(answer.entries), answer.head.seq)
