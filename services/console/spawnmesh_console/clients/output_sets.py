"""The files that runs of a session have published."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC

from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import GetSetRequest
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.session.v1.output_pb2 import ListOutputSetsRequest, OutputSet
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh_client.client import Mesh
from spawnmesh_core.errors import not_found

from spawnmesh_console.domain.output_sets import LISTED_FILES, PAGE_FILES, ShownFile, ShownOutputSet

_PAGE_SETS = 10  # Of up to 1,000 files each: the answer is no larger than a message may be.


@dataclass(frozen=True, slots=True)
class OutputSetPage:
    """Sets of a session with their first files, and the token of the next page; empty on the last
    one.
    """

    sets: list[ShownOutputSet]
    next_page_token: str


async def output_set_page(mesh: Mesh, session_id: str, *, page_token: str = "") -> OutputSetPage:
    """Return a page of the sets in the order in which they were published."""
    peer = mesh.wire.service("session")
    request = ListOutputSetsRequest(session_id=session_id, page_size=_PAGE_SETS, page_token=page_token)
    answer = await peer.unary(SessionServiceStub(peer.channel).ListOutputSets, request)
    return OutputSetPage([_listed(one) for one in answer.output_sets], answer.next_page_token)


async def output_set(mesh: Mesh, session_id: str, set_id: str, *, first_place: int = 0) -> ShownOutputSet:
    """Return a set with the files from a place on. Raises NotFound, also for a set that no run of
    this session has published.
    """
    found = await _output_set(mesh, session_id, set_id)
    return ShownOutputSet(
        found.set_id,
        found.run_id,
        found.create_time.ToDatetime(UTC),
        len(found.files),
        found.total_bytes,
        _files(found.files, first_place, PAGE_FILES),
        is_deleted=found.state == attachment_pb2.SET_STATE_RELEASED,
    )


async def output_file(mesh: Mesh, session_id: str, set_id: str, place: int) -> ShownFile:
    """Return one file of a set. Raises NotFound."""
    files = _files((await _output_set(mesh, session_id, set_id)).files, place, 1)
    if not files:
        raise not_found("file", str(place))
    return files[0]


async def _output_set(mesh: Mesh, session_id: str, set_id: str) -> attachment_pb2.AttachmentSet:
    peer = mesh.wire.service("attachment-blob")
    stub = AttachmentBlobServiceStub(peer.channel)
    found = (await peer.unary(stub.GetSet, GetSetRequest(set_id=set_id))).set
    if found.session_id != session_id or not found.run_id:
        raise not_found("output set", set_id)
    return found


def _listed(one: OutputSet) -> ShownOutputSet:
    return ShownOutputSet(
        one.set_id,
        one.run_id,
        one.publish_time.ToDatetime(UTC),
        len(one.files),
        one.total_bytes,
        _files(one.files, 0, LISTED_FILES),
    )


def _files(
    files: Sequence[attachment_pb2.AttachmentFile], first_place: int, count: int
) -> tuple[ShownFile, ...]:
    shown = enumerate(files[first_place : first_place + count], first_place)
    return tuple(ShownFile(place, one.name, one.size_bytes, one.mime_type) for place, one in shown)
