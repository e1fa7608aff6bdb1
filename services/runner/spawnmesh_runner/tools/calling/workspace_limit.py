"""The limit of a workspace, for the tools that write files."""

from pathlib import Path

from spawnmesh_runner.clients.sandbox.disk import Unreadable, directory_bytes
from spawnmesh_runner.domain.tools import ToolRefused


def require_room(workspace: Path, max_workspace_bytes: int, size_bytes: int) -> None:
    """Raise ToolRefused unless the workspace has room for the bytes. May block.

    A file that they replace counts, too.
    """
    room_bytes = max_workspace_bytes - size_bytes
    try:
        if size_bytes == 0 or directory_bytes(workspace, room_bytes) <= room_bytes:
            return
        problem = f"all files together may have {max_workspace_bytes} bytes"
    except Unreadable as error:
        problem = f"its size cannot be found: {error}"
    raise ToolRefused(
        "WORKSPACE_FULL",
        f"the workspace has no room for {size_bytes} bytes: {problem}."
        " Replace files that are no longer needed with empty ones",
    )
