"""The Python client and the `spawnmesh` command.

    async with connect(session="127.0.0.1:7001", token=token) as mesh:
        session = await mesh.spawn("Summarise the report.", attachments=[Path("report.md")])
        answer = await mesh.wait(session.session_id, 300)
        print(answer.session.latest_run.result_text)

Functions answer with the messages of the contracts and raise `MeshError` for every refusal; branch on its `reason`.
"""

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_client.attachments import Attachment
from spawnmesh_client.mesh import Mesh, connect

__all__ = ["Attachment", "Mesh", "MeshError", "Reason", "connect"]
