"""Messages of output sets, rendered into responses."""

from dataclasses import asdict

from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentFile
from spawnmesh.session.v1 import output_pb2 as pb
from spawnmesh_calls.wire_times import timestamp_of

from spawnmesh_session.domain.output_sets import OutputSet


def render_output_set(output_set: OutputSet) -> pb.OutputSet:
    """Render an output set with its files."""
    return pb.OutputSet(
        set_id=output_set.set_id,
        session_id=output_set.session_id,
        run_id=output_set.run_id,
        request_id=output_set.request_id,
        files=[AttachmentFile(**asdict(file)) for file in output_set.files],
        total_bytes=output_set.total_bytes,
        publish_time=timestamp_of(output_set.publish_time),
    )
