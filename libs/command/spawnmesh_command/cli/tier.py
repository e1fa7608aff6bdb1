"""The command `spawnmesh transcript tier`."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text
from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh_client.storage import list_transcripts
from spawnmesh_client.tiering import TierCounts, tier_transcript
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason

from spawnmesh_command.cli.operations import shown_progress
from spawnmesh_command.cli.refusals import print_error
from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import console, plain, print_json


def add_commands(group: typer.Typer) -> None:
    """Add it below `transcript`."""
    group.command()(tier)


def tier(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what --apply would do.")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Move large payloads out of the database.")] = False,
    revert: Annotated[
        bool, typer.Option("--revert", help="Move payloads back into the database, without references.")
    ] = False,
    session_id: Annotated[
        str,
        typer.Option(
            "--session", metavar="SESSION_ID", help="This session; else all sessions of the tenant."
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Move large payloads between the database and the blob store; print one transcript a line,
    and the total.

    It may be interrupted and repeated. The exit code is 1 if something failed.
    """
    flags = {
        pb.TIER_ACTION_DRY_RUN: dry_run,
        pb.TIER_ACTION_APPLY: apply,
        pb.TIER_ACTION_REVERT: revert,
    }
    chosen = [action for action, is_set in flags.items() if is_set]
    if len(chosen) != 1:
        raise typer.BadParameter("give one of --dry-run, --apply and --revert")

    async def body(mesh: WireMesh) -> bool:
        return await _tier(mesh, chosen[0], session_id, as_json=as_json)

    if not with_mesh(context, body, as_json=as_json):
        raise typer.Exit(1)


async def _tier(mesh: WireMesh, action: pb.TierAction.ValueType, session_id: str, *, as_json: bool) -> bool:
    """Tier the transcripts. Return True if all succeeded."""
    peer = mesh.service("transcript")
    total, sizes = TierCounts(), [0, 0]
    transcript_count = refused_count = 0
    async for size in list_transcripts(peer):
        if session_id not in ("", size.session_id):
            continue
        done = TierCounts()
        try:
            with shown_progress(size.session_id) as show:
                await tier_transcript(peer, size.session_id, action, done, show)
        except MeshError as error:
            if refused_with(error, Reason.TIER_DISABLED) or (session_id and not done.examined_entry_count):
                raise
            if not refused_with(error, Reason.NOT_FOUND):  # It was deleted after it was listed.
                print_error(f"{size.session_id}: {error}")
                refused_count += 1
            if not done.examined_entry_count:
                continue
        transcript_count += 1
        total.add(done)
        # The listed size, changed by what was moved since.
        stored_bytes = size.stored_bytes
        if action != pb.TIER_ACTION_DRY_RUN:
            stored_bytes += done.reverted_bytes - done.cooled_bytes
        sizes = [sizes[0] + stored_bytes, sizes[1] + size.logical_bytes]
        _print(size.session_id, action, done, stored_bytes, size.logical_bytes, as_json=as_json)
    if session_id and not transcript_count:
        raise MeshError(Reason.NOT_FOUND, f"session {session_id} has no transcript")
    if not as_json:
        _print(f"{transcript_count} transcripts", action, total, *sizes, as_json=False)
    return not (total.failed_entry_count or refused_count)


def _print(
    name: str,
    action: pb.TierAction.ValueType,
    done: TierCounts,
    stored_bytes: int,
    logical_bytes: int,
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json(
            {"session_id": name, **asdict(done), "stored_bytes": stored_bytes, "logical_bytes": logical_bytes}
        )
        return
    if action == pb.TIER_ACTION_REVERT:
        said = [f"{done.reverted_entry_count:,} entries back, {done.reverted_bytes:,} bytes"]
    else:
        would = "would be " if action == pb.TIER_ACTION_DRY_RUN else ""
        said = [
            f"{done.externalized_entry_count:,} entries {would}put",
            f"{done.cooled_entry_count:,} {would}dropped, {done.cooled_bytes:,} bytes",
        ]
        if done.condensed_entry_count:
            said.append(f"{done.condensed_entry_count:,} {would}condensed")
    if done.failed_entry_count:
        said.append(f"{done.failed_entry_count:,} failed ({done.failure_reason})")
    share = f"{100 * stored_bytes / logical_bytes:.0f} %" if logical_bytes else "-"
    line = f"{name}  {', '.join(said)}  stored {stored_bytes:,} of {logical_bytes:,} bytes, {share}"
    console().print(Text(plain(line, keep="")), soft_wrap=True)
