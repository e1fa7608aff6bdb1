"""From values to responses."""

from dataclasses import asdict
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as service_pb2
from spawnmesh.attachment_blob.v1 import attachment_pb2 as pb
from spawnmesh.attachment_blob.v1 import upload_pb2

from spawnmesh_attachment_blob.domain.garbage import GarbageCounts
from spawnmesh_attachment_blob.domain.sets import AttachmentSet
from spawnmesh_attachment_blob.domain.uploads import Upload


def render_set(attachment_set: AttachmentSet) -> pb.AttachmentSet:
    """The set with its manifest."""
    return pb.AttachmentSet(
        set_id=attachment_set.set_id,
        session_id=attachment_set.session_id,
        state=pb.SetState.Value(f"SET_STATE_{attachment_set.state}"),
        files=[
            pb.AttachmentFile(name=file.name, size_bytes=file.size_bytes, sha256=file.sha256, mime_type=file.mime_type)
            for file in attachment_set.files
        ],
        total_bytes=sum(file.size_bytes for file in attachment_set.files),
        create_time=timestamp(attachment_set.create_time),
    )


def render_upload(upload: Upload) -> upload_pb2.Upload:
    """The upload. Not for one that is ABORTING, which the contract does not know."""
    return upload_pb2.Upload(
        upload_id=upload.spec.upload_id,
        name=upload.spec.name,
        size_bytes=upload.spec.size_bytes,
        sha256=upload.spec.sha256,
        mime_type=upload.spec.mime_type,
        state=upload_pb2.UploadState.Value(f"UPLOAD_STATE_{upload.state}"),
        durable_bytes=upload.durable_bytes,
        create_time=timestamp(upload.create_time),
        expire_time=timestamp(upload.expire_time),
    )


def render_counts(counts: GarbageCounts) -> service_pb2.GarbageCounts:
    """What a collection found."""
    return service_pb2.GarbageCounts(**asdict(counts))


def timestamp(moment: datetime) -> Timestamp:
    """A moment as messages carry it."""
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp
