"""Pages of a transcript in memory, and the requests for them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb

PAGE_SIZE = 2


@dataclass(slots=True)
class Listing:
    """Answer ListEntries in pages of two, and record requests and returned entries."""

    requests: list[pb.ListEntriesRequest] = field(default_factory=list)
    given: list[int] = field(default_factory=list)

    def page(
        self, entries: Sequence[entry_pb2.Entry], request: pb.ListEntriesRequest
    ) -> pb.ListEntriesResponse:
        self.requests.append(request)
        kinds = {entry_pb2.EntryKind.Name(kind) for kind in request.filter.kinds}
        found = [entry for entry in entries if not kinds or f"ENTRY_KIND_{_kind(entry).upper()}" in kinds]
        if request.filter.roles:
            found = [entry for entry in found if entry.body.message.role in request.filter.roles]
        if request.HasField("before_seq"):
            found = [entry for entry in found if entry.seq < (request.before_seq or len(entries) + 1)]
            page = found[-PAGE_SIZE:]
        else:
            found = [entry for entry in found if entry.seq > request.after_seq]
            page = found[:PAGE_SIZE]
        self.given += [entry.seq for entry in page]
        head = pb.Head(seq=len(entries))
        return pb.ListEntriesResponse(entries=page, head=head, has_more=len(found) > len(page))


def _kind(entry: entry_pb2.Entry) -> str:
    kind = entry.body.WhichOneof("kind") or ""
    return "note" if kind == "system_note" else kind
