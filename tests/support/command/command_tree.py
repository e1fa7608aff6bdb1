"""Every command of `spawnmesh`, as a person finds it."""

from collections.abc import Iterator
from typing import Any

import typer

from tests.support.command.fake_mesh import spawnmesh


def commands(below: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with its names."""
    context = typer.Context(spawnmesh())
    for name in below.list_commands(context):
        command = below.get_command(context, name)
        yield (*names, name), command
        if hasattr(command, "list_commands"):
            yield from commands(command, *names, name)
