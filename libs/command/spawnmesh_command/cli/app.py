"""The complete command: its own commands and those that other installed packages add."""

import os
import sys
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated, TextIO

import typer
from spawnmesh_core.reasons import Reason

from spawnmesh_command.cli import (
    agents,
    approvals,
    attachments,
    audit,
    budgets,
    hooks,
    jobs,
    operations,
    operators,
    outputs,
    router,
    schedules,
    sessions,
    spend,
    transcripts,
    webhooks,
)
from spawnmesh_command.cli.global_options import RootGroup
from spawnmesh_command.cli.refusals import print_error, report
from spawnmesh_command.cli.run import not_text
from spawnmesh_command.endpoints import LocalRefusal

PLUGINS = "spawnmesh.commands"
"""Entry points of this group are functions `add_commands(app: typer.Typer) -> None`."""

_TARGET = "host:port; the environment: SPAWNMESH_{}_TARGET."


def build_app() -> typer.Typer:
    """Build the command.

    A package whose commands cannot be loaded is skipped with a message on standard error.
    """
    app = typer.Typer(
        name="spawnmesh",
        cls=RootGroup,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(options)
    for commands in (
        sessions,
        approvals,
        budgets,
        agents,
        transcripts,
        attachments,
        outputs,
        hooks,
        webhooks,
        schedules,
        router,
        spend,
        jobs,
        operations,
        audit,
        operators,
    ):
        commands.add_commands(app)
    for entry in sorted(entry_points(group=PLUGINS), key=lambda entry: entry.name):
        try:
            entry.load()(app)
        except (ImportError, AttributeError):
            print_error(f"the commands of {entry.value.partition(':')[0]} cannot be loaded")
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"spawnmesh {version('spawnmesh-command')}")
        raise typer.Exit


def options(
    context: typer.Context,
    tenant: Annotated[str | None, typer.Option(help="The tenant; SPAWNMESH_TENANT, else `demo`.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="The directory of mesh.json; SPAWNMESH_DATA, else `.data`.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="The gateway of a mesh, such as https://host; SPAWNMESH_URL.")
    ] = None,
    session_target: Annotated[str | None, typer.Option(help=_TARGET.format("SESSION"))] = None,
    transcript_target: Annotated[str | None, typer.Option(help=_TARGET.format("TRANSCRIPT"))] = None,
    attachment_blob_target: Annotated[
        str | None, typer.Option(help=_TARGET.format("ATTACHMENT_BLOB"))
    ] = None,
    model_router_target: Annotated[str | None, typer.Option(help=_TARGET.format("MODEL_ROUTER"))] = None,
    hook_target: Annotated[str | None, typer.Option(help=_TARGET.format("HOOK"))] = None,
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Spawn agents' sessions and follow them.

    A mesh on this machine is found automatically, and tokens for it are minted as needed. Any other
    mesh needs SPAWNMESH_URL, or its targets, and a token in SPAWNMESH_TOKEN. The options below may
    also stand behind the name of a command.
    """
    given = {
        "tenant": tenant,
        "data": data,
        "url": url,
        "session_target": session_target,
        "transcript_target": transcript_target,
        "attachment_blob_target": attachment_blob_target,
        "model_router_target": model_router_target,
        "hook_target": hook_target,
    }
    context.obj = {name: value for name, value in given.items() if value is not None}


def main() -> None:
    """Run the command. A refusal ends it with exit code 1 and one line, wrong usage with 2."""
    if sys.stdout is None:  # The caller closed standard error, so no message is wanted.
        sys.stdout = _nowhere()
    try:
        try:
            build_app()()
        except SystemExit:
            sys.stdout.flush()  # What was printed may be in a buffer, and its end on a full disk.
            raise
    except Exception as error:  # noqa: BLE001 - one line, no traceback
        _print_last(
            not_text(error) or LocalRefusal(Reason.INTERNAL, f"unexpected {type(error).__name__}: {error}")
        )
        sys.exit(1)


def _print_last(refusal: LocalRefusal) -> None:
    """Print the refusal, unless standard output cannot be written."""
    as_json = "--json" in sys.argv
    try:
        if as_json:
            report(refusal, as_json=True)
        sys.stdout.flush()
    except OSError:
        sys.stdout = _nowhere()  # Otherwise Python would write the buffer again at exit.
    else:
        if as_json:
            return
    print_error(refusal.message)


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")
