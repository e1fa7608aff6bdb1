"""Puts the command together: what it can do by itself, and what other installed packages add to it."""

import os
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, TextIO

import typer
from spawnmesh_core.reasons import Reason

from spawnmesh_client.cli import agents, attachments, hooks, operators, router, sessions, transcripts
from spawnmesh_client.cli.refusals import report, tell
from spawnmesh_client.cli.run import not_text
from spawnmesh_client.whereabouts import LocalRefusal

PLUGINS = "spawnmesh.commands"
"""Entry points of this group are functions `add_commands(app: typer.Typer) -> None`."""

_TARGET = "host:port; the environment: SPAWNMESH_{}_TARGET."


def build_app() -> typer.Typer:
    """The whole command. A package whose commands cannot be loaded is told of on standard error and left out."""
    app = typer.Typer(name="spawnmesh", no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(options)
    for commands in (sessions, agents, transcripts, attachments, hooks, router, operators):
        commands.add_commands(app)
    for entry in sorted(entry_points(group=PLUGINS), key=lambda entry: entry.name):
        try:
            entry.load()(app)
        except (ImportError, AttributeError):
            tell(f"the commands of {entry.value.partition(':')[0]} cannot be loaded")
    return app


def options(
    context: typer.Context,
    tenant: Annotated[str | None, typer.Option(help="Whom to act for; SPAWNMESH_TENANT, else `demo`.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Where the local mesh leaves mesh.json; SPAWNMESH_DATA, else `.data`.")
    ] = None,
    session_target: Annotated[str | None, typer.Option(help=_TARGET.format("SESSION"))] = None,
    transcript_target: Annotated[str | None, typer.Option(help=_TARGET.format("TRANSCRIPT"))] = None,
    attachment_blob_target: Annotated[str | None, typer.Option(help=_TARGET.format("ATTACHMENT_BLOB"))] = None,
    model_router_target: Annotated[str | None, typer.Option(help=_TARGET.format("MODEL_ROUTER"))] = None,
    hook_target: Annotated[str | None, typer.Option(help=_TARGET.format("HOOK"))] = None,
) -> None:
    """Spawn agents' sessions and see what becomes of them.

    A mesh on this machine is found by itself, and tokens for it are made as needed. Any other is named by its targets, with a token in
    SPAWNMESH_TOKEN.
    """
    given = {
        "tenant": tenant,
        "data": data,
        "session_target": session_target,
        "transcript_target": transcript_target,
        "attachment_blob_target": attachment_blob_target,
        "model_router_target": model_router_target,
        "hook_target": hook_target,
    }
    context.obj = {name: value for name, value in given.items() if value is not None}


def main() -> None:
    """Runs the command. Refusals end with exit code 1 and one line, wrong usage with 2."""
    if sys.stdout is None:  # Closed by whoever runs it, who wants none.
        sys.stdout = _nowhere()
    try:
        build_app()()
    except Exception as error:  # noqa: BLE001 - whatever it is, a person at a terminal is told in one line and not by a traceback
        _tell_last(not_text(error) or LocalRefusal(Reason.INTERNAL, f"unexpected {type(error).__name__}: {error}"))
        sys.exit(1)


def _tell_last(refusal: LocalRefusal) -> None:
    """As any refusal is told, unless the output is what cannot be written."""
    if "--json" in sys.argv:
        try:
            report(refusal, as_json=True)
            sys.stdout.flush()
        except OSError:
            sys.stdout = _nowhere()  # Or what it holds would be tried once more at the end.
        else:
            return
    tell(refusal.message)


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")
