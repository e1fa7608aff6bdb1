"""Files that a call has published, also if its answer was lost."""

from collections.abc import Iterable

from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentFile
from spawnmesh.session.v1 import output_pb2

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.tools.calling.tool import CallScope


async def find_published(scope: CallScope) -> output_pb2.OutputSet | None:
    """Return the output set that this call has published, on this runner or on an earlier one.

    Return None if there is none. Raises MeshError, also if the session service does not say.
    """
    peers = scope.peers
    request = output_pb2.ListOutputSetsRequest(session_id=scope.session_id, request_id=scope.request_id)
    listed = await call_with_retry(peers.session, peers.sessions.ListOutputSets, request)
    return listed.output_sets[0] if listed.output_sets else None


def render_files(files: Iterable[AttachmentFile]) -> list[dict[str, object]]:
    """Return the files as the model reads them."""
    return [{"name": file.name, "bytes": file.size_bytes, "sha256": file.sha256} for file in files]
