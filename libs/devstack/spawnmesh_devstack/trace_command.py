"""The command `spawnmesh trace`: the trace of a session as the local mesh recorded it."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from spawnmesh_command.cli.run import AsJson, reported, settings_of, with_mesh
from spawnmesh_command.cli.show import console, print_json
from spawnmesh_command.endpoints import LocalRefusal, find_endpoints
from spawnmesh_core.ids import IdKind, is_id
from spawnmesh_core.reasons import Reason

from spawnmesh_devstack.span_file import load_spans
from spawnmesh_devstack.traces import services, waterfall

_TRACE_ID = re.compile(r"[0-9a-f]{32}")


def add_commands(app: typer.Typer) -> None:
    """Add `trace` to the command."""
    app.command()(trace)


def trace(
    context: typer.Context,
    of: Annotated[str, typer.Argument(metavar="TRACE_ID|SESSION_ID", help="32 hex digits, or `ses_…`")],
    as_json: AsJson = False,
) -> None:
    """Draw a trace as a waterfall. Only a mesh on this machine keeps its traces where they can be
    read.
    """
    trace_id = _trace_id(context, of, as_json)
    with reported(as_json=as_json):
        spans = load_spans(_traces_file(context), trace_id)
        if not spans:
            raise LocalRefusal(
                Reason.NOT_FOUND, f"no span of trace {trace_id} is recorded yet; they arrive within seconds"
            )
    if as_json:
        print_json({"trace_id": trace_id, "spans": [asdict(span) for span in spans]})
        return
    out = console()
    out.print(f"trace {trace_id}: {len(spans)} spans of {', '.join(services(spans))}")
    for line in waterfall(spans, out.width):
        out.print(line, no_wrap=True, overflow="crop")


def _trace_id(context: typer.Context, of: str, as_json: bool) -> str:
    if _TRACE_ID.fullmatch(of):
        return of
    if is_id(IdKind.SESSION, of):
        return with_mesh(context, lambda mesh: mesh.session(of), as_json=as_json).trace_id
    raise typer.BadParameter("is neither a trace id nor a session id")


def _traces_file(context: typer.Context) -> Path:
    traces = find_endpoints(settings_of(context)).traces
    if traces is None:
        raise LocalRefusal(
            Reason.NOT_FOUND, "this mesh keeps its traces elsewhere; ask its own collector for this one"
        )
    return traces
