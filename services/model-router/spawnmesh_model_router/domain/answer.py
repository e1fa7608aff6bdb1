"""The answer of a provider, independent of its wire format."""

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from spawnmesh_model_router.domain.reasons import FailoverReason


class StopReason(StrEnum):
    """The reason for which the model stopped. The names are those of the proto enum."""

    UNSPECIFIED = "STOP_REASON_UNSPECIFIED"
    END = "STOP_REASON_END"
    TOOL_USE = "STOP_REASON_TOOL_USE"
    LENGTH = "STOP_REASON_LENGTH"
    REFUSAL = "STOP_REASON_REFUSAL"

    @property
    def is_chosen_by_model(self) -> bool:
        """Return whether the model ended by itself.

        Otherwise its last tool call may be cut off, and must not be executed.
        """
        return self in (StopReason.END, StopReason.TOOL_USE)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call. `input` includes the tokens of both cache columns."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
        )


@dataclass(frozen=True, slots=True)
class UsageBounds:
    """The most tokens that one call can use. A provider's count above them is wrong."""

    input: int
    output: int

    def apply(self, usage: Usage, written_bytes: int) -> Usage:
        """Return the usage within the bounds.

        Some endpoints do not count thoughts against the limit of the output, so `written_bytes`
        raise its bound: a token has at least one byte.
        """
        read = min(usage.input, self.input)
        return Usage(
            read,
            min(usage.output, max(self.output, written_bytes)),
            min(usage.cache_read, read),
            min(usage.cache_write, read),
        )


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of text that continues the text before it."""

    text: str


@dataclass(frozen=True, slots=True)
class ThoughtPiece:
    """A piece of a thought that is not complete. It continues the piece before it."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of the arguments of a tool call that is not complete.

    It continues the piece before it, unless it begins the call.
    """

    call_id: str
    name: str
    arguments: str
    begins_call: bool = False


@dataclass(frozen=True, slots=True)
class Thought:
    """A complete thought."""

    text: str
    signature: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete tool call."""

    call_id: str
    name: str
    block_json: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an answer.

    `response_id` and `response_model` are the provider's, for telemetry. So are `reasoning_tokens`,
    the part of the output that is thinking; 0 if the provider does not report it.
    """

    stop: StopReason
    usage: Usage
    response_id: str = ""
    response_model: str = ""
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class HiddenOutput:
    """Usage of a call that no other piece shows.

    `written_bytes` are those of tool calls that cannot be shown as they grow. `read` is the input
    usage, if the provider reports it at the start.
    """

    written_bytes: int = 0
    read: Usage | None = None


Piece = TextPiece | ThoughtPiece | CallPiece | Thought | ToolCall | Finished | HiddenOutput
Block = TextPiece | Thought | ToolCall
"""A part of a complete answer."""

PieceStream = AsyncGenerator[Piece, None]


@dataclass(frozen=True, slots=True)
class StreamTimeouts:
    """The longest waits for a provider, in seconds."""

    first_seconds: float
    """For the response to begin, and then for its first event."""
    idle_seconds: float
    """For each further event."""


class ProviderFailed(Exception):
    """A failed call to a provider.

    `detail` is for people. It never contains the provider's own text, which may repeat a key or a
    prompt. With `is_about_request` no cooldown begins, whatever the reason: other requests may
    succeed. With `is_silent` the call took as long as an attempt may take. With `is_conclusive` no
    request can have caused the failure.
    """

    def __init__(
        self,
        reason: FailoverReason,
        detail: str,
        *,
        http_status: int = 0,
        retry_after_seconds: float | None = None,
        is_about_request: bool = False,
        is_silent: bool = False,
        is_conclusive: bool = False,
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.http_status = http_status
        self.retry_after_seconds = retry_after_seconds
        self.is_about_request = is_about_request
        self.is_silent = is_silent
        self.is_conclusive = is_conclusive


def written_bytes_of(piece: Piece) -> int:
    """Return the bytes that the model wrote for the piece, an upper bound of its tokens.

    A complete thought or tool call has none: its bytes were those of the pieces and of the hidden
    output before it.
    """
    return piece.written_bytes if isinstance(piece, HiddenOutput) else _byte_count(_growing_text(piece))


def block_bytes(block: Block) -> int:
    """Return the bytes of the block, an upper bound of its tokens."""
    return _byte_count(block.block_json if isinstance(block, ToolCall) else block.text)


def hidden_output(written: str) -> list[Piece]:
    """Return the report of the written text; an empty list if it is empty."""
    return [HiddenOutput(_byte_count(written))] if written else []


def join_pieces(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces in order. Those that continue each other become one."""
    runs: list[list[Piece]] = []
    for piece in pieces:
        if runs and _continues(piece, runs[-1][-1]):
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return list(map(_join, runs))


def _continues(piece: Piece, before: Piece) -> bool:
    match piece:
        case TextPiece() | ThoughtPiece():
            return type(piece) is type(before)
        case CallPiece():
            return isinstance(before, CallPiece) and not piece.begins_call
        case HiddenOutput():
            return isinstance(before, HiddenOutput) and piece.read is None
    return False


def _join(run: list[Piece]) -> Piece:
    text = "".join(map(_growing_text, run))
    match run[0]:
        case TextPiece():
            return TextPiece(text)
        case ThoughtPiece():
            return ThoughtPiece(text)
        case CallPiece() as first:
            return replace(first, arguments=text)
        case HiddenOutput() as first:
            return replace(first, written_bytes=sum(map(written_bytes_of, run)))
    return run[0]


def _growing_text(piece: Piece) -> str:
    match piece:
        case TextPiece() | ThoughtPiece():
            return piece.text
        case CallPiece():
            return piece.arguments
    return ""


def _byte_count(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def unreadable_tool_call() -> ProviderFailed:
    """Return the failure of an answer with a tool call that cannot be executed.

    It causes no cooldown: a prompt can make a model write such a call.
    """
    detail = "the model's tool call cannot be read"
    return ProviderFailed(FailoverReason.SERVER_ERROR, detail, is_about_request=True)


@dataclass(slots=True)
class Answer:
    """An answer as it grows: complete blocks in order, and `finished` once its end has arrived."""

    blocks: list[Block] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def has_output(self) -> bool:
        """Return whether the answer contains output that the caller sees."""
        return any(not isinstance(block, Thought) for block in self.blocks)

    def add(self, piece: Piece) -> None:
        """Add the next piece. Text extends a text block before it.

        A piece of a thought or a call adds nothing: the complete one follows.
        """
        if isinstance(piece, ThoughtPiece | CallPiece | HiddenOutput):
            return
        if isinstance(piece, Finished):
            self.finished = piece
        elif isinstance(piece, TextPiece) and self.blocks and isinstance(self.blocks[-1], TextPiece):
            self.blocks[-1] = TextPiece(self.blocks[-1].text + piece.text)
        else:
            self.blocks.append(piece)

    def require_complete(self) -> Finished:
        """Return the end of the answer.

        Raises ProviderFailed if there is no end, no content, or only a refusal.
        """
        if self.finished is None:
            raise ProviderFailed(FailoverReason.TIMEOUT, "the answer broke off")
        if self.has_output or self.finished.stop is StopReason.LENGTH:
            return self.finished
        if self.finished.stop is StopReason.REFUSAL:
            raise ProviderFailed(FailoverReason.NO_FAILOVER, "the model refused")
        raise ProviderFailed(FailoverReason.EMPTY_RESPONSE, "the answer was empty")
