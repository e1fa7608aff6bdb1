"""The commands `spawnmesh transcript compact` and `expand`."""

from typing import Annotated

import typer
from rich.text import Text
from spawnmesh.transcript.v1.compaction_service_pb2 import CompactTranscriptResponse
from spawnmesh.transcript.v1.entry_pb2 import Entry, SummaryMethod
from spawnmesh_client.compaction import compact_transcript, expand_summary
from spawnmesh_client.wire import WireMesh

from spawnmesh_command.cli.arguments import SessionId
from spawnmesh_command.cli.entries import entry_text
from spawnmesh_command.cli.operations import shown_progress
from spawnmesh_command.cli.refusals import print_error
from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import console, plain, print_json, value_of, when


def add_commands(group: typer.Typer) -> None:
    """Add them below `transcript`."""
    group.command()(compact)
    group.command()(expand)


def compact(
    context: typer.Context,
    session_id: SessionId,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="The model that writes it; may be repeated for fallbacks.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Summarize what is no longer fresh in a transcript; models read the summary in its place.

    Waits for the operation and shows its progress. The exit code is 1 if a plugin refuses.
    """

    async def body(mesh: WireMesh) -> tuple[CompactTranscriptResponse, Entry | None]:
        peer = mesh.service("transcript")
        with shown_progress(session_id) as show:
            done = await compact_transcript(peer, session_id, models=models or (), on_progress=show)
        if as_json or not done.summary_seq:
            return done, None
        return done, await anext(mesh.transcript(session_id, after_seq=done.summary_seq - 1))

    done, summary = with_mesh(context, body, as_json=as_json)
    if as_json:
        print_json(value_of(done))
    elif summary is not None:
        _print_summary(done, summary)
    elif not done.refused_by:
        console().print(Text("nothing to summarize: all is fresh, or too little is not"))
    if done.refused_by:
        print_error(f"refused by {done.refused_by}: {done.refusal}")
        raise typer.Exit(1)


def expand(
    context: typer.Context,
    session_id: SessionId,
    entry_id: Annotated[str, typer.Argument(metavar="ENTRY_ID", help="The summary's entry.")],
    as_json: AsJson = False,
) -> None:
    """Print the sources of a summary: the summary before it, messages and notes.

    With --json, print one entry a line.
    """

    async def body(mesh: WireMesh) -> None:
        async for entry in expand_summary(mesh.service("transcript"), session_id, entry_id):
            if as_json:
                print_json(value_of(entry))
            else:
                heading, text = entry_text(entry)
                _print(f"{entry.seq:>4}  {when(entry.create_time)}  {entry.entry_id}  {heading}", text)

    with_mesh(context, body, as_json=as_json)


def _print_summary(done: CompactTranscriptResponse, entry: Entry) -> None:
    sources = entry.body.compaction.sources
    method = SummaryMethod.Name(sources.method).removeprefix("SUMMARY_METHOD_").lower()
    covered = f"{done.summarized_entry_count} entries up to {sources.last_seq}"
    tokens = f"the last {sources.entry_count} with {sources.token_count} tokens as {done.summary_token_count}"
    heading = f"{entry.entry_id}  {covered}, {tokens}  {method}  {sources.model}"
    _print(heading.rstrip(), entry.body.compaction.summary)


def _print(heading: str, text: str) -> None:
    console().print(Text(plain(heading, keep=""), style="dim"))
    if text:
        console().print(Text(plain(text)))
