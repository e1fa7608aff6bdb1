"""What a provider's answer is made of, whatever its wire format."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from enum import StrEnum

from spawnmesh_model_router.domain.reasons import FailoverReason


class Stop(StrEnum):
    """Why the model stopped; names are those of the contract."""

    UNSPECIFIED = "STOP_REASON_UNSPECIFIED"
    END = "STOP_REASON_END"
    TOOL_USE = "STOP_REASON_TOOL_USE"
    LENGTH = "STOP_REASON_LENGTH"
    REFUSAL = "STOP_REASON_REFUSAL"

    @property
    def is_models_own(self) -> bool:
        """Whether the model ended there by itself. Else its last call may be cut off, which nobody is to make."""
        return self in (Stop.END, Stop.TOOL_USE)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call; `input` includes those of both cache columns."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of text; it goes behind the one before."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """A whole thought."""

    text: str
    signature: str


@dataclass(frozen=True, slots=True)
class Call:
    """A whole tool call."""

    call_id: str
    name: str
    block_json: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an answer. `response_id` and `response_model` are as the provider gave them, for telemetry."""

    stop: Stop
    usage: Usage
    response_id: str = ""
    response_model: str = ""


@dataclass(frozen=True, slots=True)
class Unseen:
    """What a call used up that nobody is shown: bytes of thoughts and of calls as they grow, and what was read, where the provider tells it at
    once. For the tenant's budget, should the answer not come to its end."""

    written_bytes: int = 0
    read: Usage | None = None


Piece = TextPiece | Thought | Call | Finished | Unseen


@dataclass(frozen=True, slots=True)
class Timing:
    """How long to wait, in seconds."""

    first_seconds: float
    """For the answer to begin, and then for its first event."""
    idle_seconds: float
    """For each further event."""


class ProviderFailed(Exception):
    """A call of a provider that failed. `detail` is for people and never the provider's own text, which may repeat a key or a prompt.

    With `is_about_request` nothing rests, whatever the reason: other requests may well succeed.
    """

    def __init__(
        self,
        reason: FailoverReason,
        detail: str,
        *,
        http_status: int = 0,
        retry_after_seconds: float | None = None,
        is_about_request: bool = False,
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.http_status = http_status
        self.retry_after_seconds = retry_after_seconds
        self.is_about_request = is_about_request


def unseen(*written: str) -> list[Unseen]:
    """The report of what was written, if anything was."""
    count = sum(len(text.encode("utf-8", "replace")) for text in written)
    return [Unseen(count)] if count else []


def unreadable_call() -> ProviderFailed:
    """The failure of an answer with a call of a tool that nobody can make. A prompt can have a model write one."""
    detail = "the model's call of a tool cannot be read"
    return ProviderFailed(FailoverReason.SERVER_ERROR, detail, is_about_request=True)


@dataclass(slots=True)
class Answer:
    """An answer as it grows: whole blocks in order, and its end once that has come."""

    blocks: list[TextPiece | Thought | Call] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def has_output(self) -> bool:
        """Whether there is anything that the caller is shown."""
        return any(not isinstance(block, Thought) for block in self.blocks)

    def add(self, piece: Piece) -> None:
        """Takes the next piece; text grows the block before it where that is text."""
        if isinstance(piece, Unseen):
            return
        if isinstance(piece, Finished):
            self.finished = piece
        elif isinstance(piece, TextPiece) and self.blocks and isinstance(self.blocks[-1], TextPiece):
            self.blocks[-1] = TextPiece(self.blocks[-1].text + piece.text)
        else:
            self.blocks.append(piece)

    def require_whole(self) -> Finished:
        """The end. Raises ProviderFailed for an answer without one, without content, or with nothing in it but a refusal."""
        if self.finished is None:
            raise ProviderFailed(FailoverReason.TIMEOUT, "the answer broke off")
        if self.has_output or self.finished.stop is Stop.LENGTH:
            return self.finished
        if self.finished.stop is Stop.REFUSAL:
            raise ProviderFailed(FailoverReason.NO_FAILOVER, "the model refused")
        raise ProviderFailed(FailoverReason.EMPTY_RESPONSE, "the answer was empty")


Pieces = AsyncGenerator[Piece, None]
