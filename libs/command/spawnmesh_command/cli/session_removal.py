"""Commands that archive and delete sessions."""

import typer

from spawnmesh_command.cli.arguments import SessionId
from spawnmesh_command.cli.confirmation import Yes, confirm
from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import print_json, value_of


def add_commands(sessions: typer.Typer) -> None:
    """Add `sessions archive` and `sessions delete`."""
    sessions.command()(archive)
    sessions.command()(delete)


def archive(context: typer.Context, session_id: SessionId, as_json: AsJson = False) -> None:
    """Archive an ended session and its descendants.

    Only --archived lists them; transcripts stay.
    """
    answer = with_mesh(context, lambda mesh: mesh.archive(session_id), as_json=as_json)
    if as_json:
        print_json(value_of(answer))
    else:
        print(f"sessions archived: {answer.archived_session_count}")


def delete(context: typer.Context, session_id: SessionId, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a session and its descendants, with transcripts and files.

    Runs are killed. Deleted data cannot be restored.
    """
    confirm(f"Delete {session_id} and its descendants, with transcripts and files?", yes=yes)
    answer = with_mesh(context, lambda mesh: mesh.delete(session_id), as_json=as_json)
    if as_json:
        print_json(value_of(answer))
    else:
        print(f"sessions deleted: {answer.deleted_session_count}; runs killed: {answer.killed_run_count}")
