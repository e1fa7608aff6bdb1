"""A spawn that another runner began and that cannot be repeated without that runner's files."""

from pathlib import Path

from pydantic import ValidationError
from spawnmesh.content.v1 import message_pb2
from spawnmesh_materialize import MaterializeError, MaterializeReason, open_for_reading

from spawnmesh_runner.clients.threads import finish_in_thread
from spawnmesh_runner.domain.tools import ToolRefused
from spawnmesh_runner.tools.calling.call import ToolOutcome, refusal
from spawnmesh_runner.tools.calling.call_arguments import call_arguments
from spawnmesh_runner.tools.calling.spawn_outcome import find_child
from spawnmesh_runner.tools.calling.tool import CallScope, json_line
from spawnmesh_runner.tools.sessions_spawn import SessionsSpawn, is_redaction_marker, render_spawned

_MASKED = "[$redacted:"  # The prefix of a secret that was masked in the stored call.


async def interrupted_spawn_outcome(scope: CallScope, call: message_pb2.ToolCall) -> ToolOutcome | None:
    """Return the outcome of the call; None if it can be repeated, or if it cannot have spawned.

    Without its files a repeat would be refused, although the child may run: a request with the same
    request_id must have the same files. So the child is looked for. If there is none now, there
    will be none: the session service refuses the spawns of an earlier epoch. Raises MeshError if
    the run is lost or must wait.
    """
    as_made = _as_made(call)
    if as_made is None:
        return None
    spawn, was_redacted = as_made
    if not was_redacted and not await finish_in_thread(lambda: _lacks_files(scope.workspace, spawn)):
        return None
    try:
        child = await find_child(scope)
    except ToolRefused as refused:
        return ToolOutcome(str(refused), refused.reason)
    if child is not None:
        return ToolOutcome(json_line(render_spawned(child)))
    return refusal(
        "NOT_SPAWNED",
        "the runner was replaced during the call, and it has no child. What the call handed over is gone with"
        " the runner: make the call again, with the files and secrets in place of the markers",
    )


def _as_made(call: message_pb2.ToolCall) -> tuple[SessionsSpawn, bool] | None:
    """Return the call with empty contents in place of redacted ones, and True if there were any.

    Return None for a call that the tool refuses in any case.
    """
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
    return isinstance(file, dict) and is_redaction_marker(file.get("content"))


def _lacks_files(workspace: Path, spawn: SessionsSpawn) -> bool:
    """Return True if the workspace lacks a file that the call hands over.

    It is not the earlier runner's workspace.
    """
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
