"""The files of the session's receipt, in the workspace of its run."""

from collections.abc import Iterable

from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_materialize import MaterializeError

from spawnmesh_runner.clients.set_download import (
    download_set,
    get_set,
    is_readable,
    needed_bytes,
    state_name,
)
from spawnmesh_runner.domain.failure import is_disk_full
from spawnmesh_runner.loop.assignment import Assignment


async def fetch_attachments(assignment: Assignment) -> None:
    """Write the session's complete attachment set into the workspace, with every hash checked.

    A session without files needs no call. Raises MeshError:

    - ATTACHMENT_SET_STATE if the files were released.
    - ATTACHMENTS_MATERIALIZATION_FAILED if they differ from the receipt, are too large for a
      workspace, or cannot be written.
    - the error of the blob service.

    Raises MaterializeError if the disk has no room for them.
    """
    if not assignment.claimed.session.HasField("receipt"):
        return
    receipt = assignment.claimed.session.receipt
    found = await get_set(assignment.peers, receipt.set_id)
    _require_promised(found, receipt)
    _require_room(found, assignment.max_workspace_bytes)
    try:
        await download_set(assignment.peers, found, assignment.workspace)
    except MaterializeError as error:
        if is_disk_full(error):
            raise
        raise MeshError(
            Reason.ATTACHMENTS_MATERIALIZATION_FAILED,
            f"the attachments could not be written into the workspace: {error}",
        ) from error


def _require_promised(found: attachment_pb2.AttachmentSet, receipt: session_pb2.AttachmentReceipt) -> None:
    """Raise unless the set is readable and has the files that the session was spawned with.

    A run without them would answer without them.
    """
    set_id = receipt.set_id
    if not is_readable(found):
        state = state_name(found)
        raise MeshError(
            Reason.ATTACHMENT_SET_STATE,
            f"the session's files can no longer be read: attachment set {set_id} is {state};"
            " spawn a new session with them, and lengthen the tenant's retention"
            " if sessions stay open longer",
            facts={"set_id": set_id, "state": state},
        )
    if _manifest(found.files) != _manifest(receipt.files):
        raise MeshError(
            Reason.ATTACHMENTS_MATERIALIZATION_FAILED,
            f"the files of attachment set {set_id} are not those of the session's receipt;"
            " spawn a new session with them, and check if only one of the two services was restored",
            facts={"set_id": set_id},
        )


def _require_room(found: attachment_pb2.AttachmentSet, max_workspace_bytes: int) -> None:
    """Raise unless the workspace has room for the files and for the copy that they pass through."""
    total_bytes = sum(file.size_bytes for file in found.files)
    if needed_bytes(found) > max_workspace_bytes:
        raise MeshError(
            Reason.ATTACHMENTS_MATERIALIZATION_FAILED,
            f"the session's files have {total_bytes} bytes, and a workspace has room for"
            f" {max_workspace_bytes // 2}; attach less, or raise RUNNER_MAX_WORKSPACE_BYTES",
            facts={"total_bytes": total_bytes, "limit_bytes": max_workspace_bytes // 2},
        )


def _manifest(files: Iterable[attachment_pb2.AttachmentFile]) -> list[tuple[str, int, str]]:
    return sorted((file.name, file.size_bytes, file.sha256) for file in files)
