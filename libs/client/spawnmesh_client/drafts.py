"""Show the watchers of the session what a model says while it says it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.transcript.v1 import live_event_pb2
from spawnmesh.transcript.v1 import live_service_pb2 as pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh_core.answer_log import AnswerLog, CallHead, Said, SaidCall, SaidText, SaidThinking
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

WriteDraft = Callable[[pb.WriteDraftRequest], Awaitable[pb.WriteDraftResponse]]
"""Make the call of LiveService. Raises MeshError."""

TRANSIENT = (
    Reason.DEPENDENCY_UNAVAILABLE,
    Reason.DRAINING,
    Reason.POOL_EXHAUSTED,
    Reason.RATE_LIMITED,
    Reason.CONFLICT,
    Reason.SPAWN_IN_PROGRESS,
    Reason.CANCELLED,
    Reason.DEADLINE_EXCEEDED,
)
"""The reasons after which the same piece is written again."""

# An answer that is complete by then is appended, and needs no draft.
_FIRST_PAUSE_SECONDS = 0.01
# Between the beginnings of two calls: what comes meanwhile goes with the next one.
_PAUSE_SECONDS = 0.1
_OUTAGE_PAUSE_SECONDS = 1.0
_CALL_BYTES = 64 * 1024
_CALL_PIECES = 100

log = logging.getLogger("spawnmesh_client.drafts")


class Spoken:
    """The answer as far as it has come, and the model that gives it."""

    def __init__(self, notify: Callable[[], None] = lambda: None) -> None:
        self._notify = notify
        self._model = ""
        self._attempt_count = 0
        self._log = AnswerLog()

    def take(self, event: router_pb.GenerationEvent) -> None:
        """Add what the model says in an event. A further attempt begins anew."""
        match event.WhichOneof("event"):
            case "attempt_started":
                self._model = event.attempt_started.model
                self._attempt_count += 1
                self._log = AnswerLog()
                return
            case "text_delta":
                self._log.add_text(event.text_delta.text)
            case "thinking_delta":
                self._log.add_thinking(event.thinking_delta.text)
            case "tool_call_delta":
                piece = event.tool_call_delta
                head = CallHead(piece.tool_call_id, piece.name)
                self._log.add_call_piece(head, piece.arguments, begins_call=piece.begins_call)
            case "tool_call":
                call = event.tool_call
                self._log.complete_call(CallHead(call.tool_call_id, call.name), call.block_json)
            case _:
                return
        self._notify()

    @property
    def attempt_count(self) -> int:
        """The number of attempts that have begun. Each speaks from the beginning."""
        return self._attempt_count

    @property
    def model(self) -> str:
        return self._model

    @property
    def message(self) -> message_pb2.Message | None:
        """The answer as far as it has come, without calls of tools; None if it has no text."""
        outputs = self._log.outputs
        if not any(isinstance(one, SaidText) and one.text.strip() for one in outputs):
            return None
        return message_pb2.Message(
            role=message_pb2.ROLE_ASSISTANT, model=self._model, content=map(_render_block, outputs)
        )

    def pieces(self, offset: int) -> list[live_event_pb2.DraftPiece]:
        """Return what was said behind the first `offset` bytes, as much as one call takes."""
        return [_render(piece) for piece in self._log.pieces_behind(offset, _CALL_BYTES, _CALL_PIECES)]


def _render_block(said: SaidText | SaidThinking) -> message_pb2.ContentBlock:
    if isinstance(said, SaidText):
        return message_pb2.ContentBlock(text=message_pb2.Text(text=said.text))
    # Without the provider's signature, so no provider gets it again.
    return message_pb2.ContentBlock(thinking=message_pb2.Thinking(text=said.text))


def _render(said: Said) -> live_event_pb2.DraftPiece:
    match said:
        case SaidText():
            return live_event_pb2.DraftPiece(text=said.text)
        case SaidThinking():
            return live_event_pb2.DraftPiece(thinking=said.text)
        case SaidCall():
            call = said.call
            part = live_event_pb2.ToolCallPiece(
                tool_call_id=call.tool_call_id,
                name=call.name,
                arguments=said.text,
                begins_call=said.begins_call,
            )
            return live_event_pb2.DraftPiece(tool_call=part)


@dataclass(frozen=True, slots=True)
class _SpokenAnswer:
    spoken: Spoken
    after_seq: int


@dataclass(slots=True)
class _Draft:
    """The draft of one attempt: its number, and how much of it is written."""

    number: int
    answer: _SpokenAnswer | None = None
    attempt_count: int = 0
    offset: int = 0
    is_open: bool = False


class Drafts:
    """The answers of a run, one after the other, while models give them.

    Their numbers follow `newest_number`, which is that of the newest draft.
    """

    def __init__(self, newest_number: int = 0) -> None:
        self.newest_number = newest_number
        self._answer: _SpokenAnswer | None = None
        self._spoke, self._closed = asyncio.Event(), asyncio.Event()

    def close(self) -> None:
        """End `follow` behind the call that it is making."""
        self._closed.set()
        self._spoke.set()

    @contextmanager
    def writing(self, after_seq: int) -> Iterator[Spoken]:
        """Take an answer during the block. `after_seq` is that of the fence before the prompt."""
        spoken = Spoken(self._spoke.set)
        self._answer = _SpokenAnswer(spoken, after_seq)
        try:
            yield spoken
        finally:
            self._answer = None

    async def follow(self, write: WriteDraft, session_id: str, claim: transcript_pb.WriterClaim) -> None:
        """Write what is said until `close`. A failure delays watchers, and the run in no way."""
        draft = _Draft(self.newest_number)
        while not self._closed.is_set():
            await self._spoke.wait()
            self._spoke.clear()
            answer = self._answer
            if answer is None:
                continue
            if draft.answer is not answer:
                await self._pause(_FIRST_PAUSE_SECONDS)
                if self._answer is not answer:
                    continue
            attempt_count = answer.spoken.attempt_count
            if (draft.answer, draft.attempt_count) != (answer, attempt_count):
                draft = _Draft(draft.number + 1, answer, attempt_count, is_open=True)
                self.newest_number = draft.number
            if draft.is_open:
                await self._pause(await self._write(write, session_id, claim, draft, answer))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()

    async def _write(
        self,
        write: WriteDraft,
        session_id: str,
        claim: transcript_pb.WriterClaim,
        draft: _Draft,
        answer: _SpokenAnswer,
    ) -> float:
        """Write the next piece, and return the pause before the one after it."""
        pieces = answer.spoken.pieces(draft.offset)
        if not pieces:
            return 0.0
        request = pb.WriteDraftRequest(
            session_id=session_id,
            claim=claim,
            number=draft.number,
            after_seq=answer.after_seq,
            model=answer.spoken.model,
            offset=draft.offset,
            pieces=pieces,
        )
        began = asyncio.get_running_loop().time()
        try:
            written = await write(request)
        except MeshError as error:
            raise_if_cancelled()
            if error.reason not in TRANSIENT:
                draft.is_open = False
                log.info("draft not written: %s", error.reason.value)
                return 0.0
            self._spoke.set()
            return _OUTAGE_PAUSE_SECONDS
        draft.offset, draft.is_open = written.end_offset, written.accepts_more
        self._spoke.set()  # A call is bounded, the server may have lost some, and more was said.
        return max(0.0, began + _PAUSE_SECONDS - asyncio.get_running_loop().time())
