"""The command `spawnmesh sessions diff`."""

import asyncio
from typing import Annotated

import typer
from spawnmesh.session.v1.budget_pb2 import GetSessionUsageResponse
from spawnmesh_client.budgets import get_usage
from spawnmesh_client.session_diff import MAX_ENTRIES, WireDiff, diff_sessions
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.errors import MeshError

from spawnmesh_command.cli import completion
from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.session_diff_text import DiffPrinter
from spawnmesh_command.cli.show import print_json, value_of

_TROUBLE = 2
"""The exit code of a refusal with --exit-code, where 1 means that the sessions differ."""
Compared = tuple[WireDiff, GetSessionUsageResponse | None, GetSessionUsageResponse | None]


def add_commands(sessions: typer.Typer) -> None:
    """Add `sessions diff`."""
    sessions.command()(diff)


def diff(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", autocompletion=completion.sessions, help="`ses_…`")],
    b: Annotated[
        str,
        typer.Argument(metavar="B", autocompletion=completion.sessions, help="`ses_…`, such as a fork of A."),
    ],
    full: Annotated[bool, typer.Option("--full", help="Long texts, too.")] = False,
    limit: Annotated[
        int, typer.Option(min=0, max=100_000, help="At most this many entries of each.")
    ] = MAX_ENTRIES,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if they differ, with 2 if this is not known.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show where two sessions went apart.

    Entries are compared by what they say: ids, times, models, thinking and usage do not count.
    """
    try:
        found, usage_a, usage_b = with_mesh(
            context, lambda mesh: _compared(mesh, a, b, limit), as_json=as_json
        )
    except typer.Exit as refused:
        raise typer.Exit(_TROUBLE if exit_code else refused.exit_code) from None
    if as_json:
        print_json(_document(found, usage_a, usage_b))
    else:
        DiffPrinter(found, full=full).print(usage_a, usage_b)
    if exit_code and not found.view.is_equal:
        raise typer.Exit(1)


async def _compared(mesh: WireMesh, a: str, b: str, limit: int) -> Compared:
    found = await diff_sessions(mesh, a, b, max_entries=limit)
    usage_a, usage_b = await asyncio.gather(_usage(mesh, a), _usage(mesh, b))
    return found, usage_a, usage_b


async def _usage(mesh: WireMesh, session_id: str) -> GetSessionUsageResponse | None:
    try:
        return await get_usage(mesh.service("session"), session_id)
    except MeshError:  # A reader sees the difference all the same.
        return None


def _document(
    diff: WireDiff, usage_a: GetSessionUsageResponse | None, usage_b: GetSessionUsageResponse | None
) -> dict[str, object]:
    found = diff.found
    return {
        "a": value_of(diff.a),
        "b": value_of(diff.b),
        "is_equal": diff.view.is_equal,
        "forked_at": None if diff.forked_at is None else value_of(diff.forked_at),
        "common_count": found.common_count,
        "common_message_count": found.common_message_count,
        "common_seq_a": str(found.common_seq_a),
        "common_seq_b": str(found.common_seq_b),
        "left_out_count": found.left_out_count,
        "only_a": [value_of(entry) for entry in found.only_a],
        "only_b": [value_of(entry) for entry in found.only_b],
        "is_cut_a": found.is_cut_a,
        "is_cut_b": found.is_cut_b,
        "superseded": sorted(found.superseded),
        "usage_a": None if usage_a is None else value_of(usage_a),
        "usage_b": None if usage_b is None else value_of(usage_b),
    }
