"""Options of `spawnmesh` itself, which may also stand behind the name of any command."""

from copy import copy
from typing import Any

import typer
from typer.core import TyperGroup, TyperOption

_ANYWHERE = (
    "tenant",
    "data",
    "url",
    "session_target",
    "transcript_target",
    "attachment_blob_target",
    "model_router_target",
    "hook_target",
)


class RootGroup(TyperGroup):
    """The commands of the root, each of which takes the options of the root, too.

    A command that has an option of the same name keeps its own meaning of it.
    """

    def get_command(self, context: Any, name: str) -> Any:
        """Return the command of this name; None if there is none."""
        command = super().get_command(context, name)
        if command is not None:
            options = [one for one in self.params if isinstance(one, TyperOption) and one.name in _ANYWHERE]
            _accept(command, options)
        return command


def _accept(command: Any, options: list[TyperOption]) -> None:
    """Add the options to the command, and to each one below it."""
    taken = {name for param in command.params for name in param.opts}
    command.params += [_repeated(one) for one in options if not taken & set(one.opts)]
    for below in getattr(command, "commands", {}).values():
        _accept(below, options)


def _repeated(option: TyperOption) -> TyperOption:
    """Return the option as one that is stored where those of the root are."""
    repeated = copy(option)
    repeated.hidden, repeated.expose_value = True, False
    repeated.callback = _store  # type: ignore[assignment]
    return repeated


def _store(context: typer.Context, option: TyperOption, value: Any) -> Any:
    if value is not None:
        context.find_root().ensure_object(dict)[option.name] = value
    return value
