"""The tool `write_file`: write a text file into the workspace."""

import hashlib
from pathlib import Path

from pydantic import Field
from spawnmesh_materialize import open_for_writing
from spawnmesh_materialize.errors import os_errors_typed

from spawnmesh_runner.clients.threads import finish_in_thread
from spawnmesh_runner.domain.tools import ToolRefused
from spawnmesh_runner.tools.calling.tool import Arguments, CallScope, Result, Tool
from spawnmesh_runner.tools.calling.workspace_limit import require_room

MAX_WRITE_BYTES = 1024 * 1024


class WriteFile(Arguments):
    path: str = Field(description="File, relative to the workspace; missing directories are made.")
    content: str = Field(description="The file's whole text.")


def write_file(workspace: Path, max_workspace_bytes: int, path: str, content: str) -> Result:
    """Create or replace a file with the text in UTF-8.

    Raises ToolRefused over MAX_WRITE_BYTES, and if the workspace would have more than
    `max_workspace_bytes`. Raises MaterializeError.
    """
    data = content.encode("utf-8")
    if len(data) > MAX_WRITE_BYTES:
        raise ToolRefused("TOO_LARGE", f"at most {MAX_WRITE_BYTES} bytes can be written at once")
    require_room(workspace, max_workspace_bytes, len(data))
    # The file closes inside the block: buffered data meets a full disk only then.
    with os_errors_typed(), open_for_writing(workspace, path, create_parents=True) as file:
        file.write(data)
    return {"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


async def _execute(scope: CallScope, arguments: WriteFile) -> Result:
    return await finish_in_thread(
        lambda: write_file(scope.workspace, scope.max_workspace_bytes, arguments.path, arguments.content)
    )


WRITE_FILE = Tool(
    name="write_file",
    description=f"Writes or replaces a text file in the workspace; at most {MAX_WRITE_BYTES} bytes.",
    arguments=WriteFile,
    execute=_execute,
    idempotent=True,
)
