"""The command `spawnmesh transcript recount`."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text
from spawnmesh_client.recounts import Recount, recount_transcript
from spawnmesh_client.storage import list_transcripts
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason

from spawnmesh_command.cli.operations import shown_progress
from spawnmesh_command.cli.refusals import print_error
from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import console, plain, print_json


def add_commands(group: typer.Typer) -> None:
    """Add it below `transcript`."""
    group.command()(recount)


def recount(
    context: typer.Context,
    session_id: Annotated[
        str,
        typer.Option(
            "--session", metavar="SESSION_ID", help="This session; else all sessions of the tenant."
        ),
    ] = "",
    apply: Annotated[
        bool | None,
        typer.Option(
            "--apply/--dry-run", help="Apply the change, or only print it; one of them is required."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count tokens with the vocabulary of the tenant's settings; print one transcript a line.

    The exit code is 1 if one failed.
    """
    if apply is None:
        raise typer.BadParameter("give --dry-run or --apply")

    async def body(mesh: WireMesh) -> bool:
        peer = mesh.service("transcript")
        if session_id:
            with shown_progress(session_id) as show:
                counted = await recount_transcript(peer, session_id, dry_run=not apply, on_progress=show)
            _print(session_id, counted, as_json=as_json)
            return True
        return await _all(mesh, dry_run=not apply, as_json=as_json)

    if not with_mesh(context, body, as_json=as_json):
        raise typer.Exit(1)


async def _all(mesh: WireMesh, *, dry_run: bool, as_json: bool) -> bool:
    peer = mesh.service("transcript")
    is_well = True
    async for transcript in list_transcripts(peer):
        try:
            with shown_progress(transcript.session_id) as show:
                counted = await recount_transcript(
                    peer, transcript.session_id, dry_run=dry_run, on_progress=show
                )
        except MeshError as error:
            if not refused_with(error, Reason.NOT_FOUND):  # It was deleted after it was listed.
                print_error(f"{transcript.session_id}: {error}")
                is_well = False
            continue
        _print(transcript.session_id, counted, as_json=as_json)
    return is_well


def _print(session_id: str, counted: Recount, *, as_json: bool) -> None:
    if as_json:
        print_json({"session_id": session_id, **asdict(counted)})
        return
    changed = f"{counted.recounted_entry_count:,} of {counted.examined_entry_count:,} entries"
    tokens = f"{counted.token_count_before:,} as {counted.token_count_after:,} tokens"
    console().print(
        Text(plain(f"{session_id}  {changed}, {tokens}  {counted.token_vocabulary}", keep="")), soft_wrap=True
    )
