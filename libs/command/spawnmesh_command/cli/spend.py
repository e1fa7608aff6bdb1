"""The command `spawnmesh spend`: what model calls cost, by agent, model or day."""

from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Annotated

import typer
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1 import spend_pb2
from spawnmesh_client.budget_texts import cost_text
from spawnmesh_client.spending import MAX_DAYS, agent_text, first_day, list_spend, spend_request
from spawnmesh_client.wire import WireMesh

from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import print_json, print_table, value_of, when

_DIMENSIONS = ("agent", "model", "day")


def add_commands(app: typer.Typer) -> None:
    """Add `spend`."""
    app.command()(spend)


def spend(
    context: typer.Context,
    days: Annotated[
        int, typer.Option(min=1, max=MAX_DAYS, help="The last so many days (UTC), today included.")
    ] = 7,
    by: Annotated[str, typer.Option(metavar="|".join(_DIMENSIONS), help="What has a row.")] = "agent",
    as_json: AsJson = False,
) -> None:
    """Show what the tenant's model calls used and cost, and its budget of today.

    A call is listed about a second after its end.
    """
    if by not in _DIMENSIONS:
        raise typer.BadParameter(f"is one of {', '.join(_DIMENSIONS)}", param_hint="--by")
    request = spend_request(first_day(days), None, [by])

    async def body(mesh: WireMesh) -> pb.ListSpendResponse:
        return await list_spend(mesh.service("model-router"), request)

    listed = with_mesh(context, body, as_json=as_json)
    if as_json:
        print_json(value_of(listed))
        return
    _print_rows(listed, by)
    if listed.HasField("budget"):
        print()
        print(_budget_line(listed.budget, listed.currency))


def _print_rows(listed: pb.ListSpendResponse, by: str) -> None:
    if not listed.rows:
        print("nothing was spent")
        return
    rows = list(listed.rows) if by == "day" else sorted(listed.rows, key=_cost, reverse=True)
    name = _NAMES[by]
    total = spend_pb2.SpendRow()
    for row in rows:
        for field in _COUNTS:
            setattr(total, field, getattr(total, field) + getattr(row, field))
    columns = (by, "calls", "input", "of it cached", "output", f"cost {listed.currency}", "share")
    cells = [_cells(name(row), row, total.cost_micros) for row in rows]
    if len(rows) > 1:
        cells.append(_cells("total", total, total.cost_micros))
    print_table(columns, cells)


_COUNTS = ("call_count", "input_token_count", "output_token_count", "cache_read_token_count", "cost_micros")
_NAMES: dict[str, Callable[[spend_pb2.SpendRow], str]] = {
    "agent": lambda row: agent_text(row.agent_id),
    "model": lambda row: row.model,
    "day": lambda row: row.day_time.ToDatetime(UTC).strftime("%Y-%m-%d"),
}


def _cost(row: spend_pb2.SpendRow) -> tuple[int, int]:
    return row.cost_micros, row.call_count


def _cells(name: str, row: spend_pb2.SpendRow, total_micros: int) -> Sequence[str]:
    return (
        name,
        f"{row.call_count:,}",
        f"{row.input_token_count:,}",
        f"{row.cache_read_token_count:,}",
        f"{row.output_token_count:,}",
        cost_text(row.cost_micros),
        _percent(row.cost_micros, total_micros),
    )


def _budget_line(budget: spend_pb2.DayBudget, currency: str) -> str:
    spent, limit = budget.spent_micros, budget.limit_micros
    line = f"today: {cost_text(spent)} of {cost_text(limit)} {currency} spent ({_percent(spent, limit)})"
    if budget.reserved_micros:
        line += f", {cost_text(budget.reserved_micros)} reserved by calls in progress"
    return f"{line}; it renews at {when(budget.renew_time)}"


def _percent(part: int, whole: int) -> str:
    if not whole:
        return ""
    percent = 100 * part / whole
    return "<1%" if 0 < percent < 1 else f"{percent:.0f}%"
