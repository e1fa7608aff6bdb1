"""The option for the models' thinking level."""

from typing import Annotated

import typer
from spawnmesh.content.v1.thinking_pb2 import THINKING_LEVEL_UNSPECIFIED, ThinkingLevel

_PREFIX = "THINKING_LEVEL_"
_LEVELS = [name.removeprefix(_PREFIX).lower() for name, value in ThinkingLevel.items() if value]


def thinking_level(name: str) -> "ThinkingLevel.ValueType":
    """Return the contract's level; unspecified for the empty name."""
    return ThinkingLevel.Value(f"{_PREFIX}{name.upper()}") if name else THINKING_LEVEL_UNSPECIFIED


def level_name(level: "ThinkingLevel.ValueType") -> str:
    """Return the level's name; empty for the unspecified level."""
    return ThinkingLevel.Name(level).removeprefix(_PREFIX).lower() if level else ""


def _known(name: str) -> str:
    if name and name.lower() not in _LEVELS:
        raise typer.BadParameter(f"there is no such level; there are {', '.join(_LEVELS)}")
    return name


Thinking = Annotated[
    str, typer.Option(metavar="LEVEL", callback=_known, help=f"How much to think: {', '.join(_LEVELS)}.")
]
