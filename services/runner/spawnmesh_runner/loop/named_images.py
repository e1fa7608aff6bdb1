"""Images that a prompt names but does not contain.

They are read from the run's own workspace only.
"""

from collections.abc import Sequence
from pathlib import Path

from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_client.turn_messages import text_of
from spawnmesh_materialize import FileKind, MaterializeError, list_directory, open_for_reading

from spawnmesh_runner.clients.threads import finish_in_thread
from spawnmesh_runner.domain.image_names import mime_type_of, named_paths, names_image
from spawnmesh_runner.loop.assignment import Assignment

MAX_IMAGES = 16
MAX_IMAGE_BYTES = 3_750_000
"""A larger image has more than 5 MB in base64, and providers refuse the request as a whole."""
MAX_TOTAL_BYTES = 8 * 1024 * 1024


async def find_named_images(
    assignment: Assignment, entries: Sequence[entry_pb2.Entry]
) -> list[generation_pb2.NamedImage]:
    """Return the images of the workspace that the user's newest message names, in its order.

    A name is a path or the name of an attachment. A name without a readable image is skipped: a
    word that looks like a name must not fail the run.
    """
    prompt = _newest_prompt(entries)
    if not names_image(prompt):
        return []
    rel_dir = assignment.claimed.session.receipt.rel_dir
    return await finish_in_thread(lambda: _read_images(assignment.workspace, rel_dir, prompt))


def _newest_prompt(entries: Sequence[entry_pb2.Entry]) -> str:
    newest = next((one for one in reversed(entries) if one.body.message.role == message_pb2.ROLE_USER), None)
    return text_of(newest.body.message) if newest is not None else ""


def _read_images(workspace: Path, rel_dir: str, prompt: str) -> list[generation_pb2.NamedImage]:
    images: list[generation_pb2.NamedImage] = []
    left_bytes = MAX_TOTAL_BYTES
    for name, path in named_paths(prompt, _attachment_names(workspace, rel_dir), rel_dir):
        try:
            with open_for_reading(workspace, path) as file:
                data = file.read(MAX_IMAGE_BYTES + 1)
        except MaterializeError:
            continue
        mime_type = mime_type_of(data)
        if not mime_type or len(data) > min(MAX_IMAGE_BYTES, left_bytes):
            continue
        left_bytes -= len(data)
        image = message_pb2.Image(mime_type=mime_type, data=data)
        images.append(generation_pb2.NamedImage(name=name, image=image))
        if len(images) == MAX_IMAGES:
            break
    return images


def _attachment_names(workspace: Path, rel_dir: str) -> list[str]:
    if not rel_dir:
        return []
    try:
        return [entry.name for entry in list_directory(workspace, rel_dir) if entry.kind is FileKind.FILE]
    except MaterializeError:
        return []
