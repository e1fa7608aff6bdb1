"""Let the running service judge attachments: stage them as one set and release them again."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh_attachment_blob.domain import (
    AttachmentLimits,
    AttachmentRefused,
    Encoding,
    InlineItem,
    validate,
)
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id

from spawnmesh_devstack.conformance.mesh import MeshAccess
from spawnmesh_devstack.conformance.tenants import prepare_tenant

_STAGE_SECONDS = 60.0
_ENCODINGS = {"utf8": attachment_pb2.ENCODING_UTF8, "base64": attachment_pb2.ENCODING_BASE64}


@dataclass(frozen=True, slots=True)
class Item:
    """An attachment of a case. An `encoding` that the contract does not have is sent as
    unspecified.
    """

    name: str
    content: str
    encoding: str
    mime_type: str = ""

    @property
    def fits_a_request(self) -> bool:
        """Return False for a lone surrogate, which UTF-8 cannot encode."""
        try:
            (self.name + self.content + self.mime_type).encode()
        except UnicodeEncodeError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Judged:
    """The judgement: `outcome` has `reason`, or `files` and `total_bytes`, and always
    `accepted`.
    """

    outcome: dict[str, Any]
    without_service: bool


async def judge(mesh: MeshAccess, items: Sequence[Item], limits: AttachmentLimits) -> Judged:
    """Return the service's judgement of the items. Only an empty bucket is left, the same one for
    the same limits.

    Raises MeshError for limits that the service refuses.
    """
    if not items:  # A set has at least one file: without items there is nothing to ask.
        return Judged(_accepted([]), without_service=True)
    if not all(item.fits_a_request for item in items):
        return Judged(_judge_here(items, limits), without_service=True)
    with mesh.as_session(_tenant_of(limits)):
        return Judged(await _stage(mesh, items, limits), without_service=False)


def _tenant_of(limits: AttachmentLimits) -> str:
    """Return a tenant for these limits only, so that its limits never change during a replay."""
    digest = hashlib.sha256(repr(sorted(asdict(limits).items())).encode()).hexdigest()
    return f"conformance-{digest[:16]}"


async def _stage(mesh: MeshAccess, items: Sequence[Item], limits: AttachmentLimits) -> dict[str, Any]:
    peer = mesh.peers["attachment-blob"]
    stub = AttachmentBlobServiceStub(peer.channel)
    await prepare_tenant(mesh, "attachment-blob", attachments=_limits(limits))
    request = pb.StageSetRequest(
        set_id=new_id(IdKind.ATTACHMENT_SET), session_id=new_id(IdKind.SESSION), items=map(_inline, items)
    )
    try:
        staged = (await peer.unary(stub.StageSet, request, timeout_seconds=_STAGE_SECONDS)).set
    except MeshError as error:
        return {"reason": str(error.reason), "accepted": False}
    await peer.unary(
        stub.ReleaseSet, pb.ReleaseSetRequest(set_id=request.set_id), timeout_seconds=_STAGE_SECONDS
    )
    files = [{"name": file.name, "bytes": file.size_bytes, "sha256": file.sha256} for file in staged.files]
    return _accepted(files) | {"total_bytes": staged.total_bytes}


def _limits(limits: AttachmentLimits) -> pb.AttachmentLimits:
    return pb.AttachmentLimits(
        enabled=limits.enabled,
        max_file_count=limits.max_files,
        max_file_bytes=limits.max_file_bytes,
        max_total_bytes=limits.max_total_bytes,
    )


def _inline(item: Item) -> attachment_pb2.InlineAttachment:
    encoding = _ENCODINGS.get(item.encoding, attachment_pb2.ENCODING_UNSPECIFIED)
    return attachment_pb2.InlineAttachment(
        name=item.name, content=item.content, encoding=encoding, mime_type=item.mime_type
    )


def _judge_here(items: Sequence[Item], limits: AttachmentLimits) -> dict[str, Any]:
    inline = [
        InlineItem(item.name, item.content, Encoding.from_text(item.encoding), item.mime_type)
        for item in items
    ]
    try:
        files = validate(inline, limits)
    except AttachmentRefused as refused:
        return {"reason": refused.reason.value, "accepted": False}
    return _accepted([{"name": file.name, "bytes": len(file.data), "sha256": file.sha256} for file in files])


def _accepted(files: list[dict[str, Any]]) -> dict[str, Any]:
    return {"accepted": True, "files": files, "total_bytes": sum(file["bytes"] for file in files)}
