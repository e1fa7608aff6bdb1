"""The attachment sets of a tenant, page by page."""

from dataclasses import dataclass
from datetime import UTC

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh_client.client import Mesh
from spawnmesh_client.view_of import enum_prefix

from spawnmesh_console.domain.storage import LISTED_NAMES, ListedSet, set_state

_PAGE_SETS = 25  # Of up to 1,000 files each: the answer is no larger than a message may be.
_STATES = attachment_pb2.SetState.DESCRIPTOR


@dataclass(frozen=True, slots=True)
class AttachmentSetPage:
    """Sets, newest first, and the token of the next page; empty on the last one."""

    sets: list[ListedSet]
    next_page_token: str


async def attachment_set_page(mesh: Mesh, *, page_token: str = "") -> AttachmentSetPage:
    """Return a page of the sets of all sessions."""
    peer = mesh.wire.service("attachment-blob")
    request = pb.ListSetsRequest(page_token=page_token, page_size=_PAGE_SETS)
    answer = await peer.unary(AttachmentBlobServiceStub(peer.channel).ListSets, request)
    return AttachmentSetPage([_listed(one) for one in answer.sets], answer.next_page_token)


def _listed(one: attachment_pb2.AttachmentSet) -> ListedSet:
    state = _STATES.values_by_number.get(one.state)
    return ListedSet(
        one.set_id,
        one.session_id,
        one.run_id,
        set_state("" if state is None else state.name.removeprefix(enum_prefix(_STATES))),
        tuple(file.name for file in one.files[:LISTED_NAMES]),
        len(one.files),
        one.total_bytes,
        one.create_time.ToDatetime(UTC),
    )
