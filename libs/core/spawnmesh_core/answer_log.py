"""The log of an answer: what a model has said so far, in the order in which it came."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from spawnmesh_core.call_blocks import arguments_in
from spawnmesh_core.spawn_calls import is_spawn_tool, may_begin_spawn_call

_NO_ARGUMENTS = "{}"
# Longer than a key of arguments and its surroundings, so that one on two pieces is found.
_SEARCHED_BEFORE = 128


@dataclass(frozen=True, slots=True)
class CallHead:
    """A tool call: the provider's id of it, and its tool."""

    tool_call_id: str
    name: str

    @property
    def size(self) -> int:
        """The bytes that the beginning of the call counts in a draft."""
        return len(self.tool_call_id.encode()) + len(self.name.encode()) + 2


@dataclass(frozen=True, slots=True)
class SaidText:
    """A piece of the text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class SaidThinking:
    """A piece of the thinking of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class SaidCall:
    """A piece of the arguments of a tool call. The first one has the head of the call."""

    call: CallHead
    text: str
    begins_call: bool


Said = SaidText | SaidThinking | SaidCall


@dataclass(slots=True)
class _Segment:
    """Pieces of one kind that follow each other. `offset` is the number of bytes before them."""

    offset: int
    piece: Said
    text: bytearray = field(default_factory=bytearray)

    @property
    def head_size(self) -> int:
        return self.piece.call.size if isinstance(self.piece, SaidCall) and self.piece.begins_call else 0

    @property
    def end_offset(self) -> int:
        return self.offset + self.head_size + len(self.text)

    def behind(self, offset: int, max_bytes: int) -> Said:
        """Return the piece behind an offset within the segment."""
        begin = max(0, offset - self.offset - self.head_size)
        end = begin + max_bytes
        while end < len(self.text) and self.text[end] & 0xC0 == 0x80:  # Within a character.
            end -= 1
        text = self.text[begin:end].decode()
        match self.piece:
            case SaidText():
                return SaidText(text)
            case SaidThinking():
                return SaidThinking(text)
            case SaidCall():
                begins = self.piece.begins_call and offset == self.offset
                return SaidCall(self.piece.call, text, begins)


@dataclass(slots=True)
class _SaidArguments:
    """A call, and what was said of its arguments: without the whitespace around them.

    `end` is the end of that, and `space` is whitespace that belongs to it if more follows. With
    `is_withheld` no more is said, since the rest may have the content of files.
    """

    head: CallHead
    is_withheld: bool
    parts: list[str] = field(default_factory=list)
    end: str = ""
    space: str = ""
    is_complete: bool = False

    @property
    def said(self) -> str:
        return "".join(self.parts)

    def grow(self, text: str) -> str:
        """Add a piece, and return what can be said of it."""
        text = self.space + text if self.parts else text.lstrip()
        grown = text.rstrip()
        self.space = text[len(grown) :]
        return self.say(grown)

    def say(self, text: str) -> str:
        """Add text as it stands, and return it if it can be said."""
        searched = self.end + text
        self.is_withheld = self.is_withheld or may_begin_spawn_call(searched)
        if self.is_withheld or not text:
            return ""
        self.parts.append(text)
        self.end = searched[-_SEARCHED_BEFORE:]
        return text


class AnswerLog:
    """The pieces of an answer: text, thinking, and tool calls as the transcript will have them.

    Behind `is_odd` nothing more is added: the answer will be another one than its pieces were.
    """

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._calls: list[_SaidArguments] = []
        self.is_odd = False

    @property
    def outputs(self) -> list[SaidText | SaidThinking]:
        """The text and the thinking of the answer, each with what continues it."""
        whole = (one.behind(one.offset, len(one.text)) for one in self._segments)
        return [one for one in whole if not isinstance(one, SaidCall)]

    def add_text(self, text: str) -> None:
        self._add(SaidText(text))

    def add_thinking(self, text: str) -> None:
        self._add(SaidThinking(text))

    def add_call_piece(self, head: CallHead, arguments: str, *, begins_call: bool) -> None:
        """Add a piece of a call that is not complete: of the newest one, or of one that begins."""
        if begins_call:
            self._begin(head)
        if not self._calls or self._calls[-1].head != head:
            self.is_odd = True
            return
        if said := self._calls[-1].grow(arguments):
            self._add(SaidCall(head, said, begins_call=False))

    def complete_call(self, head: CallHead, block_json: str) -> None:
        """Add what is missing of a call, whose block is complete."""
        arguments = arguments_in(head.tool_call_id, head.name, block_json)
        call = next((one for one in self._calls if one.head == head and not one.is_complete), None)
        if call is None:
            call = self._begin(head)
        call.is_complete = True
        said = call.said
        if call.is_withheld or said == arguments:
            return
        if call is not self._calls[-1] or not arguments.startswith(said):
            self.is_odd = True
        elif rest := call.say(arguments[len(said) :]):
            self._add(SaidCall(head, rest, begins_call=False))

    def pieces_behind(self, offset: int, max_bytes: int, max_count: int) -> Iterator[Said]:
        """Yield the pieces behind the first `offset` bytes: at most so many, with so much text."""
        count = 0
        for segment in self._segments:
            if segment.end_offset <= offset:
                continue
            piece = segment.behind(max(offset, segment.offset), max_bytes)
            yield piece
            max_bytes -= len(piece.text.encode())
            count += 1
            # Four bytes are the longest character: with fewer, the next piece could be empty.
            if count == max_count or max_bytes < 4:
                return

    def _begin(self, head: CallHead) -> _SaidArguments:
        newest = self._calls[-1] if self._calls else None
        if newest is not None and not (newest.is_complete or newest.is_withheld or newest.parts):
            # Its arguments were empty, and its block will have an empty object.
            self._add(SaidCall(newest.head, newest.say(_NO_ARGUMENTS), begins_call=False))
        call = _SaidArguments(head, is_withheld=is_spawn_tool(head.name))
        self._calls.append(call)
        self._add(SaidCall(head, "", begins_call=True))
        return call

    def _add(self, piece: Said) -> None:
        if self.is_odd:
            return
        newest = self._segments[-1] if self._segments else None
        if newest is None or not _continues(piece, newest.piece):
            newest = _Segment(newest.end_offset if newest is not None else 0, piece)
            self._segments.append(newest)
        newest.text += piece.text.encode()


def _continues(piece: Said, before: Said) -> bool:
    if isinstance(piece, SaidCall):
        return isinstance(before, SaidCall) and before.call == piece.call and not piece.begins_call
    return type(piece) is type(before)
