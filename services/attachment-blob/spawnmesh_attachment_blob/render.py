"""From values to responses."""

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.attachment_blob.v1 import attachment_pb2 as pb

from spawnmesh_attachment_blob.domain.sets import AttachmentSet


def render_set(attachment_set: AttachmentSet) -> pb.AttachmentSet:
    """The set with its manifest. Not for a set that is STAGING, which the contract does not know."""
    create_time = Timestamp()
    create_time.FromDatetime(attachment_set.create_time)
    return pb.AttachmentSet(
        set_id=attachment_set.set_id,
        session_id=attachment_set.session_id,
        state=pb.SetState.Value(f"SET_STATE_{attachment_set.state}"),
        files=[
            pb.AttachmentFile(name=file.name, size_bytes=file.size_bytes, sha256=file.sha256, mime_type=file.mime_type)
            for file in attachment_set.files
        ],
        total_bytes=sum(file.size_bytes for file in attachment_set.files),
        create_time=create_time,
    )
