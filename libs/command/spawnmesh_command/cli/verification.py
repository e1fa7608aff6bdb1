"""The command `spawnmesh transcript verify`."""

from collections.abc import AsyncIterator
from typing import Annotated

import typer
from rich.text import Text
from spawnmesh.transcript.v1.integrity_service_pb2 import MismatchCause, VerifyTranscriptResponse
from spawnmesh.transcript.v1.transcript_service_pb2 import Fence
from spawnmesh_client.storage import list_transcripts
from spawnmesh_client.verification import checkpoint_text, parse_checkpoint, verify_transcript
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason

from spawnmesh_command.cli import completion
from spawnmesh_command.cli.refusals import print_error
from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import console, plain, print_json, value_of


def add_commands(group: typer.Typer) -> None:
    """Add it below `transcript`."""
    group.command()(verify)


def verify(
    context: typer.Context,
    session_ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SESSION_ID]...",
            autocompletion=completion.sessions,
            help="`ses_…`; else all sessions of the tenant.",
        ),
    ] = None,
    after: Annotated[
        str,
        typer.Option(
            "--after", metavar="CHECKPOINT", help="A checkpoint of the session that this command printed."
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Check that transcripts have the entries that were appended; print one transcript a line,
    with a checkpoint.

    With --json, also one line for each position that is reached. The exit code is 1 if one is not
    intact or could not be checked.
    """
    start = _start(after, session_ids or [])

    async def body(mesh: WireMesh) -> bool:
        is_well = True
        async for session_id in _sessions(mesh, session_ids or []):
            try:
                is_well &= await _verify(mesh, session_id, start, as_json=as_json)
            except MeshError as error:
                if len(session_ids or []) == 1:
                    raise
                if session_ids or not refused_with(error, Reason.NOT_FOUND):  # Else: deleted meanwhile.
                    print_error(f"{session_id}: {error}")
                    is_well = False
        return is_well

    if not with_mesh(context, body, as_json=as_json):
        raise typer.Exit(1)


def _start(after: str, session_ids: list[str]) -> Fence | None:
    if not after:
        return None
    if len(session_ids) != 1:
        raise typer.BadParameter("--after needs the one session that the checkpoint is of")
    try:
        return parse_checkpoint(after)
    except ValueError:
        raise typer.BadParameter("--after is no checkpoint: `SEQ:HASH:INCARNATION`") from None


async def _sessions(mesh: WireMesh, session_ids: list[str]) -> AsyncIterator[str]:
    for session_id in session_ids:
        yield session_id
    if not session_ids:
        async for transcript in list_transcripts(mesh.service("transcript")):
            yield transcript.session_id


async def _verify(mesh: WireMesh, session_id: str, start: Fence | None, *, as_json: bool) -> bool:
    """Verify one transcript and print it. Return whether it is intact."""
    is_intact = False
    async for response in verify_transcript(mesh.service("transcript"), session_id, after=start):
        is_intact = response.HasField("intact")
        if as_json:
            print_json({"session_id": session_id, **value_of(response)})
        elif line := _result(response):
            console().print(Text(plain(f"{session_id}  {line}", keep="")), soft_wrap=True)
    return is_intact


def _result(response: VerifyTranscriptResponse) -> str:
    match response.WhichOneof("outcome"):
        case "intact":
            return f"intact  {response.intact.seq:,} entries  {checkpoint_text(response.intact)}"
        case "mismatch":
            found = response.mismatch
            cause = MismatchCause.Name(found.cause).removeprefix("MISMATCH_CAUSE_").lower()
            return "  ".join(filter(None, (f"NOT INTACT  seq {found.seq}", cause, found.entry_id)))
        case _:
            return ""
