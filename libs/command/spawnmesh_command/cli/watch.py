"""The command `spawnmesh transcript watch`."""

from typing import Annotated

import typer
from spawnmesh.policy.v1.policy_pb2 import Caller
from spawnmesh.transcript.v1.activity_service_pb2 import Activity, FailedAction, FilePart
from spawnmesh.transcript.v1.entry_pb2 import SummaryMethod
from spawnmesh_client.activities import FROM_START, ONLY_NEW, watch_activities
from spawnmesh_client.wire import WireMesh

from spawnmesh_command.cli import completion
from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import plain, print_json, value_of, when


def add_commands(group: typer.Typer) -> None:
    """Add it below `transcript`."""
    group.command()(watch)


def watch(
    context: typer.Context,
    session_id: Annotated[
        str,
        typer.Argument(
            metavar="SESSION_ID",
            autocompletion=completion.sessions,
            help="`ses_…`; else all sessions of the tenant.",
        ),
    ] = "",
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Also the activities of the last seven days.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the activities of the transcript service as they happen, until Ctrl-C; with --json
    one a line.
    """
    after_position = FROM_START if from_start else ONLY_NEW

    async def body(mesh: WireMesh) -> None:
        async for activity in watch_activities(
            mesh.service("transcript"), session_id, after_position=after_position
        ):
            if as_json:
                print_json(value_of(activity))
            else:
                print(activity_line(activity, with_session=not session_id), flush=True)

    try:
        with_mesh(context, body, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def activity_line(activity: Activity, *, with_session: bool) -> str:
    """Return position, time, action and subject of an activity."""
    session = activity.session_id if with_session else ""
    line = (f"{activity.position:>5}", when(activity.create_time), session, *_what(activity))
    return plain("  ".join(part for part in line if part), keep="")


def _what(activity: Activity) -> tuple[str, ...]:
    match activity.WhichOneof("what"):
        case "stubbed":
            one = activity.stubbed
            tokens = f"{one.full_token_count:,} as {one.stub_token_count:,} tokens"
            return (
                "stubbed",
                f"seq {one.seq}",
                one.tool_name,
                f"{one.size_bytes:,} bytes",
                tokens,
                " ".join(one.file_ids),
            )
        case "drilled_down":
            read = activity.drilled_down
            return (
                "drilled down",
                read.file_id,
                FilePart.Name(read.part).removeprefix("FILE_PART_").lower(),
                f"by a {Caller.Name(read.caller).removeprefix('CALLER_').lower()}",
                f"{read.size_bytes:,} bytes",
            )
        case "compacted":
            compacted = activity.compacted
            sources = compacted.sources
            method = SummaryMethod.Name(sources.method).removeprefix("SUMMARY_METHOD_").lower()
            tokens = f"{sources.token_count:,} as {compacted.token_count:,} tokens"
            return "compacted", f"seq {sources.first_seq}-{sources.last_seq}", tokens, method, sources.model
        case "tiered":
            moved = activity.tiered
            verb = "brought back" if moved.is_reverted else "moved out"
            return verb, f"{moved.entry_count:,} entries", f"{moved.size_bytes:,} bytes"
        case "failed":
            failed = activity.failed
            action = FailedAction.Name(failed.action).removeprefix("FAILED_ACTION_").lower()
            return "failed", action, failed.reason, f"seq {failed.seq}" if failed.seq else ""
        case _:
            return ("of a kind this client does not know",)
