"""Sets with files of other sets, and output sets."""

from collections.abc import Iterable
from typing import Any

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import attachment_pb2, upload_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id

from tests.support.attachment_blob.fixtures import Tenant, new_set_id


def file_of(set_id: str, name: str, new_name: str = "") -> attachment_pb2.ReferencedFile:
    """Build the reference of a set to a file of another one."""
    return attachment_pb2.ReferencedFile(set_id=set_id, name=name, new_name=new_name)


async def stage_references(
    tenant: Tenant,
    *references: attachment_pb2.ReferencedFile,
    items: Iterable[attachment_pb2.InlineAttachment] = (),
    uploads: Iterable[upload_pb2.UploadedAttachment] = (),
    **fields: Any,
) -> attachment_pb2.AttachmentSet:
    """Stage a set, with a new id and for a new session unless `fields` has others."""
    own = {"set_id": new_set_id(), "session_id": new_id(IdKind.SESSION)}
    request = pb.StageSetRequest(**{**own, **fields}, items=items, uploads=uploads, references=references)
    answer: pb.StageSetResponse = await tenant.call("StageSet", request)
    return answer.set


async def publish(
    tenant: Tenant, *items: attachment_pb2.InlineAttachment, readers: Iterable[str] = (), **fields: Any
) -> attachment_pb2.AttachmentSet:
    """Stage and attach an output set, of a new run and session unless `fields` has others."""
    run = {"run_id": new_id(IdKind.RUN), "reader_session_ids": list(readers)}
    staged = await stage_references(tenant, items=items, **{**run, **fields})
    return await tenant.attach(staged.set_id)


async def refusal_of(answer: Any, *hidden: str) -> tuple[Any, ...]:
    """Return the refusal that the call gets. The hidden ids in it are replaced."""
    try:
        await answer
    except MeshError as error:
        text = repr((error.reason, error.message, sorted(error.facts.items())))
        for one in hidden:
            text = text.replace(one, "ID")
        return (error.reason, text, error.retry_after_seconds)
    raise AssertionError("the call was not refused")
