"""Lists of which a command prints the first items."""

from collections.abc import AsyncIterable, Callable
from typing import Annotated, TypeVar

import typer
from google.protobuf.message import Message
from spawnmesh_client.wire import WireMesh

from spawnmesh_command.cli.run import with_mesh
from spawnmesh_command.cli.show import print_json, value_of

M = TypeVar("M", bound=Message)
Limit = Annotated[int, typer.Option(min=1, help="At most this many.")]


def print_list(
    context: typer.Context,
    field: str,
    read: Callable[[WireMesh], AsyncIterable[M]],
    print_items: Callable[[list[M]], None],
    *,
    limit: int | None = None,
    as_json: bool,
) -> None:
    """Print the first items, all without a limit, for people, or as JSON under the field's name."""
    found = with_mesh(context, lambda mesh: _first(read(mesh), limit), as_json=as_json)
    if as_json:
        print_json({field: [value_of(one) for one in found]})
    else:
        print_items(found)


async def _first(items: AsyncIterable[M], limit: int | None) -> list[M]:
    """Return the first items. Pages are read as they are needed."""
    found: list[M] = []
    async for one in items:
        found.append(one)
        if len(found) == limit:
            break
    return found
