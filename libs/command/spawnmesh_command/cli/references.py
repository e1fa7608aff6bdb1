"""Files that the mesh has, as options name them: `att_…/report.md`."""

from collections.abc import Sequence

import typer
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh_client.attachment_sets import get_readable_set
from spawnmesh_client.wire import WireMesh

_ID_LENGTH = 30
_OPTION = "--attach-from"


def attach_from_of(text: str) -> attachment_pb2.ReferencedFile:
    """Return the file that the text names as `SET_ID/NAME` or `SET_ID/NAME:NEW_NAME`; without a
    name, all files of the set are meant.

    No name of a file has a slash or a colon. Raises BadParameter.
    """
    set_id, slash, names = text.partition("/")
    name, colon, new_name = names.partition(":")
    is_id = set_id.startswith("att_") and len(set_id) == _ID_LENGTH
    if not is_id or (slash and not name) or (colon and not new_name):
        raise typer.BadParameter(
            f"{text!r} is not SET_ID, SET_ID/NAME or SET_ID/NAME:NEW_NAME", param_hint=_OPTION
        )
    return attachment_pb2.ReferencedFile(set_id=set_id, name=name, new_name=new_name)


async def references_of(
    mesh: WireMesh, wanted: Sequence[attachment_pb2.ReferencedFile]
) -> list[attachment_pb2.ReferencedFile]:
    """Return the files, with all files of a set in the place of one without a name.

    Raises MeshError for a set that cannot be read.
    """
    found = []
    for one in wanted:
        if one.name:
            found.append(one)
            continue
        files = (await get_readable_set(mesh.service("attachment-blob"), one.set_id)).files
        found += [attachment_pb2.ReferencedFile(set_id=one.set_id, name=file.name) for file in files]
    return found
