"""The command `spawnmesh budget`, and the limits that commands take."""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from types import EllipsisType
from typing import Annotated, Any

import typer
from spawnmesh.session.v1 import budget_pb2 as pb
from spawnmesh_client.budget_views import Budget
from spawnmesh_client.budgets import budget_message, changed_budget, get_usage, update_budget
from spawnmesh_client.wire import WireMesh

from spawnmesh_command.cli import completion
from spawnmesh_command.cli.budget_text import print_budget, print_usage
from spawnmesh_command.cli.durations import seconds_of
from spawnmesh_command.cli.numbers import INT64_MAX
from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import print_json, value_of

LIMITS = "cost=0.50,tokens=200000,calls=40,time=10m,wait=2h"
_NAMES = {"cost": "cost", "tokens": "tokens", "calls": "calls", "time": "run_time", "wait": "wait"}
_LONGEST_SECONDS = {"time": 31_536_000, "wait": 2_592_000}
_NO_LIMIT = "none"
_MOST_COST = Decimal(INT64_MAX) / 1_000_000


def add_commands(app: typer.Typer) -> None:
    """Add `budget`."""
    app.command()(budget)


def budget(
    context: typer.Context,
    session_id: Annotated[
        str, typer.Argument(metavar="SESSION_ID", autocompletion=completion.sessions, help="`ses_…`")
    ],
    limits: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="LIMITS",
            help=f"Change these limits, such as `{LIMITS}`; `{_NO_LIMIT}` removes one. May be repeated.",
        ),
    ] = None,
    etag: Annotated[str, typer.Option(help="Change this version of the limits alone.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show what a session and its descendants have used, and the budgets that they share.

    With --set, change the budget of the session: runs that wait for it go on if there is room.
    """
    if limits is None:
        if etag:
            raise typer.BadParameter("is for --set", param_hint="--etag")
        usage = with_mesh(
            context, lambda mesh: get_usage(mesh.service("session"), session_id), as_json=as_json
        )
        print_json(value_of(usage)) if as_json else print_usage(usage)
        return
    message, paths = changed_budget(parse_limits(",".join(limits), "--set", can_remove=True))

    async def change(mesh: WireMesh) -> pb.SessionBudget:
        return await update_budget(mesh.service("session"), session_id, message, paths, etag=etag)

    changed = with_mesh(context, change, as_json=as_json)
    print_json(value_of(changed)) if as_json else print_budget(changed)


def budget_of(text: str) -> pb.Budget | None:
    """Return the budget of the option --budget, or None for an empty text. Raise BadParameter."""
    if not text:
        return None
    limits = parse_limits(text, "--budget")
    if set(limits) == {"wait"}:
        raise typer.BadParameter(
            "needs a limit beside wait: cost, tokens, calls or time", param_hint="--budget"
        )
    return budget_message(Budget(**limits))


def parse_limits(text: str, hint: str, *, can_remove: bool = False) -> Mapping[str, Any]:
    """Return the limits under the names of `Budget`; None for one that is removed.

    Raise BadParameter, with what is allowed, for anything else than a list such as LIMITS.
    """
    limits: dict[str, Any] = {}
    for item in text.split(","):
        word, separator, value = item.strip().partition("=")
        name = _NAMES.get(word)
        if not separator or name is None or name in limits:
            raise typer.BadParameter(
                f"{item.strip()!r} is no limit of its own; write such as {LIMITS}", param_hint=hint
            )
        if value == _NO_LIMIT and can_remove:
            limits[name] = None
            continue
        parsed = _parse(word, value)
        if isinstance(parsed, EllipsisType):
            more = f", or `{_NO_LIMIT}`" if can_remove else ""
            raise typer.BadParameter(f"{word} is {_ALLOWED[word]}{more}, not {value!r}", param_hint=hint)
        limits[name] = parsed
    return limits


_COUNT = "a whole number above 0"
_ALLOWED = {
    "cost": "a number above 0 with at most six decimals, such as 0.50",
    "tokens": _COUNT,
    "calls": _COUNT,
    "time": "a time above 0 and up to 365d, such as 90s, 10m or 1h30m",
    "wait": "a time up to 30d, such as 90s, 10m or 2h, or 0s to fail at once",
}


def _parse(word: str, text: str) -> "Decimal | int | EllipsisType":
    """Return the value of a limit, a time in seconds; `...` for a text that is none."""
    if not text.isascii():
        return ...
    if word == "cost":
        try:
            cost = Decimal(text)
        except InvalidOperation:
            return ...
        is_exact = cost.is_finite() and 0 < cost <= _MOST_COST and cost == round(cost, 6)
        return cost if is_exact else ...
    if word in ("tokens", "calls"):
        return int(text) if re.fullmatch(r"\d{1,19}", text) and 0 < int(text) <= INT64_MAX else ...
    seconds = seconds_of(text)
    if seconds is None:
        return ...
    is_allowed = seconds <= _LONGEST_SECONDS[word] and (seconds > 0 or word == "wait")
    return seconds if is_allowed else ...
