"""Pages of a transcript in memory, and the requests for them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb

PAGE_SIZE = 2


@dataclass(slots=True)
class Listing:
    """Answer ListEntries in pages of two, and record requests and returned entries.

    A page looks at `scan_limit` entries at most.
    """

    scan_limit: int = 1_000
    requests: list[pb.ListEntriesRequest] = field(default_factory=list)
    given: list[int] = field(default_factory=list)

    def page(
        self, entries: Sequence[entry_pb2.Entry], request: pb.ListEntriesRequest
    ) -> pb.ListEntriesResponse:
        self.requests.append(request)
        is_backwards = request.HasField("before_seq")
        position = int(request.page_token or request.before_seq or request.after_seq)
        if is_backwards:
            last = (position or len(entries) + 1) - 1
            first = max(1, last + 1 - self.scan_limit)
        else:
            first = position + 1
            last = min(len(entries), position + self.scan_limit)
        found = [entry for entry in entries if first <= entry.seq <= last and _is_wanted(entry, request)]
        page = found[-PAGE_SIZE:] if is_backwards else found[:PAGE_SIZE]
        read_seq = first if is_backwards else last
        if len(found) > len(page):
            read_seq = page[0].seq if is_backwards else page[-1].seq
        self.given += [entry.seq for entry in page]
        has_more = read_seq > 1 if is_backwards else read_seq < len(entries)
        return pb.ListEntriesResponse(
            entries=page, head=pb.Head(seq=len(entries)), next_page_token=str(read_seq) if has_more else ""
        )


def _is_wanted(entry: entry_pb2.Entry, request: pb.ListEntriesRequest) -> bool:
    kinds = {entry_pb2.EntryKind.Name(kind) for kind in request.filter.kinds}
    if kinds and f"ENTRY_KIND_{_kind(entry).upper()}" not in kinds:
        return False
    return not request.filter.roles or entry.body.message.role in request.filter.roles


def _kind(entry: entry_pb2.Entry) -> str:
    kind = entry.body.WhichOneof("kind") or ""
    return "note" if kind == "system_note" else kind
