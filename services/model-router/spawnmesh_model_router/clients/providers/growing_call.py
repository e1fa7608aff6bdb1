"""Tool calls that are shown while the model writes their arguments."""

import secrets
from dataclasses import dataclass, field
from typing import Any

from spawnmesh_model_router.domain.answer import (
    CallPiece,
    Piece,
    ToolCall,
    hidden_output,
    unreadable_tool_call,
)
from spawnmesh_model_router.domain.tool_calls import is_complete, tool_call_block
from spawnmesh_model_router.domain.unicode import repair_surrogates


def new_call_id() -> str:
    """Return an id for a call to which the provider gave none: the result of a call needs one."""
    return f"call_{secrets.token_hex(12)}"


@dataclass(slots=True, eq=False)
class GrowingCall:
    """A tool call as it grows.

    `index` is the place of the call in the provider's stream. `provider_id` and `name` are empty
    until the provider sends them.
    """

    index: int | None
    provider_id: Any = ""
    name: Any = ""
    _call_id: str = ""
    _arguments: list[str] = field(default_factory=list)
    _is_shown: bool = False

    @property
    def arguments(self) -> str:
        return "".join(self._arguments)

    @property
    def is_complete(self) -> bool:
        return is_complete(self.arguments)

    def grow(self, arguments: str | None, *, is_newest: bool) -> list[Piece]:
        """Add the text to the arguments, and return the piece that shows it, or hidden output.

        Only the newest call of an answer is shown, and only from the beginning of its arguments on.
        Its first piece comes when its name is known, and its id or a text of the arguments. An id
        that the provider sends later is not used.
        """
        begins = not self._is_shown and self._can_begin(arguments)
        if arguments:
            self._arguments.append(arguments)
        if not is_newest or not (begins or self._is_shown):
            return hidden_output(arguments or "")
        self._is_shown = True
        return [CallPiece(self._id(), repair_surrogates(self.name), arguments or "", begins)]

    def end(self, arguments: str, *, is_newest: bool) -> list[Piece]:
        """Grow to the complete arguments that the provider repeats at the end of the call.

        If they contradict the text so far, which was shown, that text stays if it is complete.
        Otherwise they replace it.
        """
        before = self.arguments
        if arguments.startswith(before):
            return self.grow(arguments[len(before) :], is_newest=is_newest)
        if not is_complete(before):
            self._arguments = [arguments]
        return []

    def finish(self) -> ToolCall:
        """Return the complete call. Raises ProviderFailed for a call without a tool name."""
        if not self.name or not isinstance(self.name, str):
            raise unreadable_tool_call()
        call_id, name = self._id(), repair_surrogates(self.name)
        return ToolCall(call_id, name, tool_call_block(call_id, name, self.arguments))

    def _can_begin(self, arguments: str | None) -> bool:
        has_name = bool(self.name) and isinstance(self.name, str)
        return has_name and not self._arguments and bool(self.provider_id or arguments)

    def _id(self) -> str:
        self._call_id = self._call_id or repair_surrogates(str(self.provider_id or new_call_id()))
        return self._call_id
