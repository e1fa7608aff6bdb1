"""The Python client of a mesh.

    async with connect(session="127.0.0.1:7001", token=token) as mesh:
        session = await mesh.spawn("Summarise the report.", attachments=[Path("report.md")])
        answer = await mesh.wait(session.session_id, 300)
        print(answer.session.latest_run.result_text)

Functions return messages of the contracts and raise `MeshError` for every refusal; branch on its
`reason`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spawnmesh_core.errors import MeshError
    from spawnmesh_core.reasons import Reason

    from spawnmesh_client.attachments import Attachment
    from spawnmesh_client.mesh import Mesh, connect

__all__ = ["Attachment", "Mesh", "MeshError", "Reason", "connect"]

_HOMES = {
    "Attachment": "spawnmesh_client.attachments",
    "Mesh": "spawnmesh_client.mesh",
    "MeshError": "spawnmesh_core.errors",
    "Reason": "spawnmesh_core.reasons",
    "connect": "spawnmesh_client.mesh",
}


def __getattr__(name: str) -> Any:
    """Import the name when it is first used.

    That takes a part of a second, during which a program can be interrupted.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
