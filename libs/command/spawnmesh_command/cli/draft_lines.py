"""The lines in which a draft is printed while it grows."""

from spawnmesh.transcript.v1.live_event_pb2 import DraftDelta

from spawnmesh_command.cli.show import console, one_line, plain


class DraftLines:
    """The newest output of a draft that is printed, and the width that is left for a call.

    Text is printed as it is, thinking behind a heading, and a call in one line.
    """

    def __init__(self) -> None:
        self._kind: str | None = "text"
        self._left = 0
        self._is_cut = False

    def begins_line(self, delta: DraftDelta) -> bool:
        """Return whether the delta begins another output than the one before."""
        return delta.WhichOneof("delta") != self._kind or delta.tool_call.begins_call

    def shown(self, delta: DraftDelta) -> str:
        """Return what to print of the delta: of a call, what has room in its line."""
        begins, self._kind = self.begins_line(delta), delta.WhichOneof("delta")
        if self._kind != "tool_call":
            heading = "thinking: " if begins and self._kind == "thinking" else ""
            return heading + plain(delta.text or delta.thinking)
        heading = one_line(f"{delta.tool_call.name} ") if begins else ""
        if begins:
            self._left, self._is_cut = max(0, console().width - len(heading) - 1), False
        return heading + self._arguments(delta.tool_call.arguments)

    def _arguments(self, arguments: str) -> str:
        if self._is_cut:
            return ""
        text = plain(arguments, keep="")
        shown = text[: self._left]
        self._left -= len(shown)
        self._is_cut = len(shown) < len(text)
        return f"{shown}…" if self._is_cut else shown
