"""The command `spawnmesh outputs`, and the published files at the end of other commands."""

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.output_pb2 import OutputSet
from spawnmesh_client.outputs import PlacedFile, list_outputs, save_outputs
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.errors import MeshError

from spawnmesh_command.cli import completion
from spawnmesh_command.cli.output_file import reporting_write_errors
from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import plain, print_json, value_of, when
from spawnmesh_command.cli.transfers import progress_bars

_NOTHING = "no published files"
_SHOWN_FILES = 20  # `spawnmesh outputs` prints all.


def add_commands(app: typer.Typer) -> None:
    """Add `outputs`."""
    app.command()(outputs)


def outputs(
    context: typer.Context,
    session_id: Annotated[
        str, typer.Argument(metavar="SESSION_ID", autocompletion=completion.sessions, help="`ses_…`")
    ],
    run_id: Annotated[
        str, typer.Option("--run", metavar="RUN_ID", help="Only the files that this run has published.")
    ] = "",
    save: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            metavar="DIRECTORY",
            help="Download the files into it; created if its parent exists.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the files that a session's runs have published, or download them with --save.

    Each file arrives complete and with its recorded hash, or not at all. One that is there already
    with the same bytes stays as it is.

    The newest file of a name is saved under this name, an earlier one below it in a directory that
    is named as its set.
    """
    if save is None:
        if force:
            raise typer.BadParameter("is for --save DIRECTORY", param_hint="--force")
        _list(context, session_id, run_id, as_json)
        return
    directory = save

    async def body(mesh: WireMesh) -> list[PlacedFile]:
        with progress_bars() as on_progress, reporting_write_errors(directory):
            return await save_outputs(
                mesh, session_id, directory, run_id=run_id, overwrite=force, on_progress=on_progress
            )

    saved = with_mesh(context, body, as_json=as_json)
    if as_json:
        print_json(
            {
                "files": [
                    {
                        "path": str(directory / one.place),
                        "set_id": one.output_set.set_id,
                        "run_id": one.output_set.run_id,
                        **value_of(one.file),
                    }
                    for one in saved
                ]
            }
        )
        return
    for one in saved:
        print(f"{plain(str(directory / one.place), keep='')}  {one.file.size_bytes} bytes")
    if not saved:
        print(_NOTHING)


def _list(context: typer.Context, session_id: str, run_id: str, as_json: bool) -> None:
    sets = with_mesh(context, lambda mesh: listed(mesh, session_id, run_id), as_json=as_json)
    if as_json:
        print_json({"output_sets": [value_of(one) for one in sets]})
        return
    if not sets:
        print(_NOTHING)
        return
    for run, published in groupby(sets, key=lambda one: one.run_id):
        print(run)
        for one in published:
            print(f"  {one.set_id}  {when(one.publish_time)}")
            for line in _file_lines(one):
                print(f"    {line}")
    print(f"\nto download them: {save_command(session_id)}")


def _file_lines(output_set: OutputSet) -> Iterator[str]:
    """Yield a line for each file, with its size, type and name in columns."""
    files = [(str(one.size_bytes), plain(one.mime_type, keep=""), one.name) for one in output_set.files]
    size_width = max(len(size) for size, _, _ in files)
    type_width = max(len(mime_type) for _, mime_type, _ in files)
    for size, mime_type, name in files:
        columns = (f"{size:>{size_width}} bytes", f"{mime_type:<{type_width}}", plain(name, keep=""))
        yield "  ".join(column for column in columns if column)


async def listed(mesh: WireMesh, session_id: str, run_id: str = "") -> list[OutputSet]:
    """Return the output sets of a session, or of one of its runs. Raises MeshError."""
    return [one async for one in list_outputs(mesh.service("session"), session_id, run_id=run_id)]


async def published_text(mesh: WireMesh, run: session_pb2.Run) -> str:
    """Return the lines that name the files which the run has published, and the command that
    downloads them; nothing if it has published none.

    If they cannot be listed, only their number is named.
    """
    if not run.output_file_count:
        return ""
    try:
        sets = await listed(mesh, run.session_id, run.run_id)
    except MeshError:
        sets = []
    return _text(sets, run.output_file_count, run.output_total_bytes, run.session_id)


async def text_of_sets(mesh: WireMesh, session_id: str, set_ids: Collection[str]) -> str:
    """Return the lines that name the files of these output sets of a session, as `published_text`
    does; nothing if they cannot be listed.
    """
    try:
        sets = [one for one in await listed(mesh, session_id) if one.set_id in set_ids]
    except MeshError:
        return ""
    file_count = sum(len(one.files) for one in sets)
    return _text(sets, file_count, sum(one.total_bytes for one in sets), session_id) if sets else ""


def _text(sets: Sequence[OutputSet], file_count: int, total_bytes: int, session_id: str) -> str:
    files = [file for one in sets for file in one.files]
    lines = [f"published files: {file_count}, {total_bytes} bytes"]
    lines += [f"  {plain(file.name, keep='')}  {file.size_bytes} bytes" for file in files[:_SHOWN_FILES]]
    if len(files) > _SHOWN_FILES:
        lines.append(f"  and {len(files) - _SHOWN_FILES} more")
    return "\n".join([*lines, f"to download them: {save_command(session_id)}"])


def save_command(session_id: str) -> str:
    """Return the command that downloads the published files of a session."""
    return f"spawnmesh outputs {plain(session_id, keep='')} --save DIRECTORY"
