"""A spawn that another runner had begun, and that cannot be made again: what was handed over in it was that runner's."""

from pathlib import Path

from pydantic import ValidationError
from spawnmesh.content.v1 import message_pb2
from spawnmesh_materialize import MaterializeError, MaterializeReason, open_for_reading

from spawnmesh_runner.in_thread import finish_in_thread
from spawnmesh_runner.tools.call import Outcome, call_arguments
from spawnmesh_runner.tools.sessions_spawn import SessionsSpawn, is_marker
from spawnmesh_runner.tools.spawned import spawn_unknown
from spawnmesh_runner.tools.tool import Scope, ToolRefused

_MASKED = "[$redacted:"  # What a secret begins with that was masked where the call was stored.


async def unknown_spawn(scope: Scope, call: message_pb2.ToolCall) -> Outcome | None:
    """What is told of the call; None where it can be made again, or nobody can have spawned anything by it. Raises MeshError.

    Without the files a repeat would be refused, and the child run all the same. Who asks for it by the request_id has to have them, too.
    """
    as_made = _as_made(call)
    if as_made is None:
        return None
    spawn, was_redacted = as_made
    if not was_redacted and not await finish_in_thread(lambda: _lacks_files(scope.workspace, spawn)):
        return None
    why = "the runner was replaced during the call, and what the call handed over is gone with it"
    unknown = await spawn_unknown(scope, spawn.task, why)
    return Outcome(str(unknown), unknown.reason)


def _as_made(call: message_pb2.ToolCall) -> tuple[SessionsSpawn, bool] | None:
    """The call with nothing for each content that was redacted, and whether anything was. None for a call that the tool refuses anyway."""
    try:
        arguments = call_arguments(call)
        if not isinstance(arguments, dict) or not isinstance(files := arguments.get("attachments", []), list):
            return None
        made = [{**file, "content": ""} if _is_redacted(file) else file for file in files]
        was_redacted = made != files or _MASKED in call.block_json
        return SessionsSpawn.model_validate({**arguments, "attachments": made}), was_redacted
    except (ToolRefused, ValidationError):
        return None


def _is_redacted(file: object) -> bool:
    return isinstance(file, dict) and is_marker(file.get("content"))


def _lacks_files(workspace: Path, spawn: SessionsSpawn) -> bool:
    """Whether files that it hands over are not in the workspace, which is another than that of the runner that made the call."""
    for file in spawn.attachments:
        if not file.path:
            continue
        try:
            with open_for_reading(workspace, file.path):
                pass
        except MaterializeError as error:
            if error.reason is MaterializeReason.NOT_FOUND:
                return True
    return False
