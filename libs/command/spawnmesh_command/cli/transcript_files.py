"""The commands `spawnmesh transcript import`, `export` and `search`."""

import asyncio
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text
from spawnmesh.transcript.v1.archive_service_pb2 import SessionFileDialect
from spawnmesh.transcript.v1.search_service_pb2 import SearchEntriesRequest, SearchHit
from spawnmesh_client.atomic_files import atomic_file
from spawnmesh_client.transcript_files import export_file, import_file, search_entries
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.status import Status

from spawnmesh_command.cli.arguments import SessionId
from spawnmesh_command.cli.numbers import INT64_MAX
from spawnmesh_command.cli.output_file import reporting_write_errors
from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import console, plain, print_json, value_of, when
from spawnmesh_command.cli.transfers import progress_bars

_PASSING = (
    Status.UNAVAILABLE,
    Status.DEADLINE_EXCEEDED,
    Status.RESOURCE_EXHAUSTED,
    Status.ABORTED,
    Status.CANCELLED,
    Status.INTERNAL,
    Status.UNAUTHENTICATED,
)
"""Reasons after which an import may still be resumed: a new token, or some time, may help."""


def add_commands(group: typer.Typer) -> None:
    """Add them below `transcript`."""
    group.command("import")(import_)
    group.command()(export)
    group.command()(search)


def import_(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, readable=True, metavar="FILE", help="A session file, JSON lines."
        ),
    ],
    session_id: Annotated[str, typer.Option(help="Resume an interrupted import by its id.")] = "",
    as_json: AsJson = False,
) -> None:
    """Import a session file as a new transcript, completely or not at all.

    Files of Claude Code, Codex, pi and OpenClaw, and exports of Spawnmesh, are recognized by their
    content. Print the new session id.

    The id, and how to resume, are printed to standard error before anything is sent.
    """
    wanted = session_id or new_id(IdKind.SESSION)
    again = f"spawnmesh transcript import {shlex.quote(str(file))} --session-id {wanted}"

    async def body(mesh: WireMesh) -> None:
        if not session_id:
            _print_hint(f"importing as {wanted}; if this is interrupted, resume with: {again}")
        with _resume_hint(again), progress_bars() as on_progress:
            done = await import_file(mesh.service("transcript"), file, wanted, on_progress)
        if as_json:
            print_json({"session_id": wanted, **value_of(done)})
        else:
            console().print(Text(f"{wanted}  {done.entry_count} entries  {_dialect_name(done.dialect)}"))

    with_mesh(context, body, as_json=as_json)


def _dialect_name(dialect: SessionFileDialect.ValueType) -> str:
    return SessionFileDialect.Name(dialect).removeprefix("SESSION_FILE_DIALECT_")


@contextmanager
def _resume_hint(again: str) -> Iterator[None]:
    """Print how to resume an import that is interrupted, or refused for a transient reason."""
    try:
        yield
    except asyncio.CancelledError:
        _print_hint(f"stopped; resume with: {again}")
        raise
    except MeshError as error:
        if error.status in _PASSING:
            _print_hint(f"to resume later: {again}")
        raise


def _print_hint(text: str) -> None:
    print(plain(text, keep=""), file=sys.stderr, flush=True)


def export(
    context: typer.Context,
    session_id: SessionId,
    out: Annotated[
        Path | None,
        typer.Option(dir_okay=False, metavar="FILE", help="Write to this file instead of standard output."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a session's transcript as a session file: JSON lines, a header and then the entries.

    FILE is written completely or not at all.
    """

    async def body(mesh: WireMesh) -> int:
        peer = mesh.service("transcript")
        if out is not None:
            with reporting_write_errors(out), atomic_file(out, overwrite=force) as target:
                return await export_file(peer, session_id, target)
        written = await export_file(peer, session_id, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return written

    written = with_mesh(context, body, as_json=as_json)
    if out and as_json:
        print_json({"session_id": session_id, "bytes": written})


def search(
    context: typer.Context,
    session_id: SessionId,
    words: Annotated[
        str,
        typer.Argument(metavar="WORDS", help='Words, "a phrase", -without, begins*; with --regex a pattern.'),
    ],
    regex: Annotated[bool, typer.Option("--regex", help="WORDS is a regular expression (RE2).")] = False,
    descendants: Annotated[
        bool, typer.Option("--descendants", help="Also search the sessions that it spawned.")
    ] = False,
    superseded: Annotated[
        bool,
        typer.Option(
            "--superseded",
            help="Also search superseded drafts, and other branches and sub-agents of an imported file.",
        ),
    ] = False,
    after: Annotated[
        int, typer.Option(min=0, max=INT64_MAX, metavar="SEQ", help="Only after this entry.")
    ] = 0,
    before: Annotated[
        int, typer.Option(min=0, max=INT64_MAX, metavar="SEQ", help="Only before this entry.")
    ] = 0,
    limit: Annotated[int, typer.Option(min=1, help="Hits at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Find entries by their text, newest first; with --json one hit a line.

    The exit code is 1 without a hit.
    """
    request = SearchEntriesRequest(
        session_id=session_id,
        with_descendants=descendants,
        with_superseded=superseded,
        after_seq=after,
        before_seq=before,
        page_size=min(limit, 200),
    )
    if regex:
        request.pattern = words
    else:
        request.words = words

    async def body(mesh: WireMesh) -> int:
        count = 0
        async for hit in search_entries(mesh.service("transcript"), request, limit=limit):
            count += 1
            if as_json:
                print_json(value_of(hit))
            else:
                _print(hit, with_session=descendants)
        return count

    if with_mesh(context, body, as_json=as_json) == 0:
        raise typer.Exit(1)


def _print(hit: SearchHit, *, with_session: bool) -> None:
    place = f"{hit.session_id} " if with_session else ""
    file = f"  {plain(hit.file_id, keep='')} at byte {hit.byte_offset}" if hit.file_id else ""
    console().print(
        Text(f"{place}{hit.seq:>4}  {when(hit.create_time)}  {plain(hit.path, keep='')}{file}", style="dim")
    )
    console().print(Text(plain(hit.snippet)))
