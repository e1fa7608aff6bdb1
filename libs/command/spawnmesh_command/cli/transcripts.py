"""Commands for transcripts."""

import typer
from rich.text import Text
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh_client.wire import WireMesh

from spawnmesh_command.cli import compaction, recount, tier, transcript_files, verification, watch
from spawnmesh_command.cli import context as show_context
from spawnmesh_command.cli.arguments import SessionId
from spawnmesh_command.cli.entries import entry_text
from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import console, plain, print_json, value_of, when


def add_commands(app: typer.Typer) -> None:
    """Add `transcript` and its subcommands."""
    group = typer.Typer(no_args_is_help=True, help="Transcripts of sessions.")
    group.command()(show)
    transcript_files.add_commands(group)
    compaction.add_commands(group)
    for commands in (show_context, watch, recount, tier, verification):
        commands.add_commands(group)
    app.add_typer(group, name="transcript")


def show(context: typer.Context, session_id: SessionId, as_json: AsJson = False) -> None:
    """Print a session's transcript; with --json one entry a line."""

    async def body(mesh: WireMesh) -> None:
        async for entry in mesh.transcript(session_id):
            if as_json:
                print_json(value_of(entry))
            else:
                _print(entry)

    with_mesh(context, body, as_json=as_json)


def _print(entry: Entry) -> None:
    heading, text = entry_text(entry)
    line = Text(f"{entry.seq:>4}  {when(entry.create_time)}  ", style="dim").append(
        plain(heading, keep=""), style="bold"
    )
    console().print(line)
    if text:
        console().print(Text(plain(text)))
