"""The command `spawnmesh router failures`: failed calls by reason, model or hour."""

from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from spawnmesh.model_router.v1 import failures_pb2, generation_pb2
from spawnmesh_client.failures import MAX_HOURS, failures_request, first_hour, list_failures
from spawnmesh_client.wire import WireMesh

from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import print_json, print_table, value_of, when

_COUNTS = ("failure_count", "failover_count", "end_count")


def failures(
    context: typer.Context,
    hours: Annotated[
        int, typer.Option(min=1, max=MAX_HOURS, help="The last so many hours, the current one included.")
    ] = 24,
    by: Annotated[str, typer.Option(metavar="reason|model|hour", help="What has a row.")] = "reason",
    as_json: AsJson = False,
) -> None:
    """Show how many of the tenant's calls of providers failed.

    A failed call is listed about a second after the next attempt begins or the request ends.
    """
    if by not in _NAMES:
        raise typer.BadParameter(f"is one of {', '.join(_NAMES)}", param_hint="--by")
    request = failures_request(first_hour(hours), None, [by])

    async def body(mesh: WireMesh) -> list[failures_pb2.FailureRow]:
        return await list_failures(mesh.service("model-router"), request)

    listed = with_mesh(context, body, as_json=as_json)
    if as_json:
        print_json({"rows": [value_of(row) for row in listed]})
    elif not listed:
        print(f"no call failed in the last {'hour' if hours == 1 else f'{hours} hours'}")
    else:
        _print_rows(listed, by)


def _print_rows(listed: Sequence[failures_pb2.FailureRow], by: str) -> None:
    rows = listed if by == "hour" else sorted(listed, key=lambda row: row.failure_count, reverse=True)
    cells = [(_NAMES[by](row), *(f"{getattr(row, field):,}" for field in _COUNTS)) for row in rows]
    if len(rows) > 1:
        sums = (sum(getattr(row, field) for row in rows) for field in _COUNTS)
        cells.append(("total", *(f"{one:,}" for one in sums)))
    print_table((by, "failed calls", "another model called", "request ended"), cells)


def _reason(row: failures_pb2.FailureRow) -> str:
    known = generation_pb2.FailoverReason.DESCRIPTOR.values_by_number.get(row.reason)
    return "unknown" if known is None else known.name.removeprefix("FAILOVER_REASON_").lower()


_NAMES: dict[str, Callable[[failures_pb2.FailureRow], str]] = {
    "reason": _reason,
    "model": lambda row: row.model,
    "hour": lambda row: when(row.hour_time),
}
