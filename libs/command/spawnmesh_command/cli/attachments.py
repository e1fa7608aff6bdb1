"""Commands for attachments."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import typer
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import GarbageCounts
from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentFile, AttachmentSet
from spawnmesh_client.attachment_sets import (
    collect_garbage,
    download_file,
    download_url,
    get_readable_set,
    get_set,
    list_sets,
)
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.errors import not_found

from spawnmesh_command.cli import completion
from spawnmesh_command.cli.lists import Limit, print_list
from spawnmesh_command.cli.operations import shown_progress
from spawnmesh_command.cli.output_file import reporting_write_errors
from spawnmesh_command.cli.run import AsJson, settings_of, with_mesh
from spawnmesh_command.cli.show import plain, print_json, print_table, value_of, when
from spawnmesh_command.cli.transfers import progress_bars

SERVICE = "attachment-blob"

SetId = Annotated[str, typer.Argument(metavar="SET_ID", help="`att_…`; a session shows its set.")]

_COUNT_TEXTS = {
    "seen_object_count": "objects looked at",
    "orphan_object_count": "objects that no row knows: removed",
    "unsettled_blob_count": "unreferenced bytes: removed",
    "unremoved_set_count": "files of released sets: removed",
    "expired_set_count": "sets kept past the tenant's retention, or never attached: released",
    "expired_upload_count": "expired uploads: removed",
    "orphan_multipart_count": "unfinished uploads that no row knows: removed",
    "missing_object_count": "rows whose object is missing: left as they are",
    "damaged_object_count": "rows whose object has another size: left as they are",
    "forgotten_set_count": "remains of sets released long ago: removed",
    "refused_deletion_count": "keys that S3 refuses to delete: left as they are",
}


def add_commands(app: typer.Typer) -> None:
    """Add `attachments list`, `show`, `get`, `url` and `gc`."""
    group = typer.Typer(
        no_args_is_help=True, help="Files that were handed to sessions, or that they published."
    )
    group.command("list")(list_)
    for command in (show, get, url, gc):
        group.command()(command)
    app.add_typer(group, name="attachments")


def list_(
    context: typer.Context,
    session: Annotated[
        str,
        typer.Option(
            metavar="SESSION_ID", autocompletion=completion.sessions, help="Only the sets of this session."
        ),
    ] = "",
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List sets of files, newest first."""

    def read(mesh: WireMesh) -> AsyncIterator[AttachmentSet]:
        return list_sets(mesh.service(SERVICE), session_id=session, page_size=min(limit, 500))

    print_list(context, "sets", read, _print_sets, limit=limit, as_json=as_json)


def _print_sets(found: list[AttachmentSet]) -> None:
    print_table(
        ("set", "state", "session", "created", "files", "bytes", "run"),
        (
            (
                one.set_id,
                _state(one),
                one.session_id,
                when(one.create_time),
                str(len(one.files)),
                str(one.total_bytes),
                one.run_id,
            )
            for one in found
        ),
    )


def show(context: typer.Context, set_id: SetId, as_json: AsJson = False) -> None:
    """Print a set and its files."""
    found = with_mesh(context, lambda mesh: get_set(mesh.service(SERVICE), set_id), as_json=as_json)
    if as_json:
        print_json(value_of(found))
        return
    run = f", run {found.run_id}" if found.run_id else ""
    print(f"{found.set_id} {_state(found)}, of {found.session_id}, {found.total_bytes} bytes{run}")
    print_table(
        ("sha256", "bytes", "type", "name"),
        (
            (file.sha256, str(file.size_bytes), file.mime_type, plain(file.name, keep=""))
            for file in found.files
        ),
    )


def get(
    context: typer.Context,
    set_id: SetId,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="One of its files; by default all of them.")
    ] = "",
    to: Annotated[
        Path,
        typer.Option(
            file_okay=False, metavar="DIRECTORY", help="The target directory; created if its parent exists."
        ),
    ] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Download a set's files.

    Each file arrives complete and with its recorded hash, or not at all.

    A set is released when its session ends, unless the tenant keeps it; then its files are deleted.
    A session without --open ends with its run. Files that a run has published stay until the
    session is deleted, or for the tenant's `retention`.
    """

    async def body(mesh: WireMesh) -> list[tuple[AttachmentFile, Path]]:
        peer = mesh.service(SERVICE)
        files = _wanted(await get_readable_set(peer, set_id), name)
        with progress_bars() as on_progress, reporting_write_errors(to):
            to.mkdir(exist_ok=True)
            return [
                (file, await download_file(peer, set_id, file, to, overwrite=force, on_progress=on_progress))
                for file in files
            ]

    came = with_mesh(context, body, as_json=as_json)
    if as_json:
        print_json({"files": [{"path": str(path), **value_of(file)} for file, path in came]})
    else:
        for file, path in came:
            print(f"{plain(str(path), keep='')}  {file.size_bytes} bytes")


def url(
    context: typer.Context,
    set_id: SetId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of its files.")],
    as_json: AsJson = False,
) -> None:
    """Print a URL from which anybody can download a file for a short time, if the tenant's
    policy allows it.
    """
    made = with_mesh(context, lambda mesh: download_url(mesh.service(SERVICE), set_id, name), as_json=as_json)
    if as_json:
        print_json(value_of(made))
    else:
        print(made.url)


def gc(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the repairs.")] = False,
    as_json: AsJson = False,
) -> None:
    """For operators: compare the bucket of --tenant with its rows, and repair what interrupted
    work left.

    The exit code is 1 if bytes are missing or damaged, or if S3 refuses to delete some: this cannot
    be repaired.
    """
    tenant_id = settings_of(context).tenant

    async def body(mesh: WireMesh) -> GarbageCounts:
        with shown_progress(tenant_id) as show:
            return await collect_garbage(mesh.service(SERVICE), tenant_id, dry_run=dry_run, on_progress=show)

    counts = with_mesh(context, body, as_json=as_json, admin=True)
    if as_json:
        print_json({"tenant_id": tenant_id, "dry_run": dry_run, "counts": value_of(counts)})
    else:
        if dry_run:
            print("dry run: nothing was changed")
        print_table(
            ("count", "what"), ((str(getattr(counts, name)), text) for name, text in _COUNT_TEXTS.items())
        )
    if counts.missing_object_count or counts.damaged_object_count or counts.refused_deletion_count:
        raise typer.Exit(1)


def _wanted(found: AttachmentSet, name: str) -> list[AttachmentFile]:
    """Return the file of that name, or all files. Raises NOT_FOUND for an unknown name."""
    files = [file for file in found.files if name in ("", file.name)]
    if name and not files:
        raise not_found("file of that name in attachment set", found.set_id)
    return files


def _state(one: AttachmentSet) -> str:
    return attachment_pb2.SetState.Name(one.state).removeprefix("SET_STATE_")
