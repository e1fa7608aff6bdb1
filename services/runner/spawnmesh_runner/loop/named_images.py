"""Images that a prompt names but does not contain.

They are read from the run's own workspace only.
"""

from collections.abc import Sequence
from pathlib import Path

from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_client.named_images import prompt_with_image, read_named_images
from spawnmesh_materialize import FileKind, MaterializeError, list_directory, open_for_reading

from spawnmesh_runner.clients.threads import finish_in_thread
from spawnmesh_runner.loop.assignment import Assignment


async def find_named_images(
    assignment: Assignment, entries: Sequence[entry_pb2.Entry]
) -> list[generation_pb2.NamedImage]:
    """Return the images of the workspace that the user's newest message names, in its order."""
    prompt = prompt_with_image(entries)
    if not prompt:
        return []
    workspace, rel_dir = assignment.workspace, assignment.claimed.session.receipt.rel_dir

    def read_start(path: str, byte_count: int) -> bytes | None:
        try:
            with open_for_reading(workspace, path) as file:
                return file.read(byte_count)
        except MaterializeError:
            return None

    return await finish_in_thread(
        lambda: read_named_images(prompt, _attachment_names(workspace, rel_dir), rel_dir, read_start)
    )


def _attachment_names(workspace: Path, rel_dir: str) -> list[str]:
    if not rel_dir:
        return []
    try:
        return [entry.name for entry in list_directory(workspace, rel_dir) if entry.kind is FileKind.FILE]
    except MaterializeError:
        return []
