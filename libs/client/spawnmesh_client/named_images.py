"""Images that a prompt names but does not contain.

The runner and the workers of this client find the same ones, each in the workspace of its run.
"""

from collections.abc import Callable, Collection, Sequence

from spawnmesh.content.v1.message_pb2 import ROLE_USER, Image
from spawnmesh.model_router.v1.generation_pb2 import NamedImage
from spawnmesh.transcript.v1.entry_pb2 import Entry

from spawnmesh_client.image_names import mime_type_of, named_paths, names_image
from spawnmesh_client.turn_messages import text_of

MAX_IMAGES = 16
MAX_IMAGE_BYTES = 3_750_000
"""A larger image has more than 5 MB in base64, and providers refuse the request as a whole."""
MAX_TOTAL_BYTES = 8 * 1024 * 1024

ReadStart = Callable[[str, int], bytes | None]
"""Returns so many first bytes of a file, by its path in the workspace; None if there is no such
file.
"""


def prompt_with_image(entries: Sequence[Entry]) -> str:
    """Return the user's newest message if it names an image, else an empty text."""
    newest = next((one for one in reversed(entries) if one.body.message.role == ROLE_USER), None)
    prompt = text_of(newest.body.message) if newest is not None else ""
    return prompt if names_image(prompt) else ""


def read_named_images(
    prompt: str, attached_names: Collection[str], rel_dir: str, read_start: ReadStart
) -> list[NamedImage]:
    """Return the images of the workspace that the prompt names, in its order.

    A name is a path or the name of an attachment, which is in `rel_dir`. A name without a readable
    image is skipped: a word that looks like a name must not fail the run.
    """
    images: list[NamedImage] = []
    left_bytes = MAX_TOTAL_BYTES
    for name, path in named_paths(prompt, attached_names, rel_dir):
        data = read_start(path, MAX_IMAGE_BYTES + 1)
        if data is None:
            continue
        mime_type = mime_type_of(data)
        if not mime_type or len(data) > min(MAX_IMAGE_BYTES, left_bytes):
            continue
        left_bytes -= len(data)
        images.append(NamedImage(name=name, image=Image(mime_type=mime_type, data=data)))
        if len(images) == MAX_IMAGES:
            break
    return images
