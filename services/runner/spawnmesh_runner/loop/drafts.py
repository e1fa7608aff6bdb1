"""Show the watchers of the session what a model says while it says it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

import structlog
from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.transcript.v1 import live_service_pb2 as pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.errors import MeshError
from spawnmesh_runtime.telemetry import continue_trace, unrecorded_traceparent

from spawnmesh_runner.clients.peers import Peers
from spawnmesh_runner.clients.retry import CALL_SECONDS
from spawnmesh_runner.domain.reasons import TRANSIENT

# Between the beginnings of two calls: what comes meanwhile goes with the next one.
_PAUSE_SECONDS = 0.1
_OUTAGE_PAUSE_SECONDS = 1.0
_PIECE_BYTES = 64 * 1024
# A call that is under way when the run ends may still end: its connection would be lost otherwise.
_LAST_CALL_SECONDS = 0.2

log = structlog.get_logger()


class Spoken:
    """The text of an answer that has arrived so far, and the model that speaks."""

    def __init__(self, notify: Callable[[], None] = lambda: None) -> None:
        self._notify = notify
        self._model = ""
        self._attempt_count = 0
        self._text = bytearray()

    def take(self, event: router_pb.GenerationEvent) -> None:
        """Add the text of an event. A further attempt begins anew."""
        if event.HasField("attempt_started"):
            self._model = event.attempt_started.model
            self._attempt_count += 1
            self._text.clear()
        if event.text_delta.text:
            self._text += event.text_delta.text.encode()
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
        """The answer as far as it has come; None if nothing was said."""
        text = self._text.decode()
        if not text.strip():
            return None
        said = message_pb2.ContentBlock(text=message_pb2.Text(text=text))
        return message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, model=self._model, content=[said])

    def piece(self, offset: int) -> str:
        """Return what was said behind the first `offset` bytes, up to 64 KiB of it."""
        end = offset + _PIECE_BYTES
        while end < len(self._text) and self._text[end] & 0xC0 == 0x80:  # Within a character.
            end -= 1
        return self._text[offset:end].decode()


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
    """The answers of a run, one after the other, while models give them."""

    def __init__(self) -> None:
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

    async def follow(self, peers: Peers, session_id: str, claim: transcript_pb.WriterClaim) -> None:
        """Write what is said until `close`. A failure delays watchers, and the run in no way."""
        draft = _Draft(0)
        while not self._closed.is_set():
            await self._spoke.wait()
            self._spoke.clear()
            answer = self._answer
            if answer is None:
                continue
            attempt_count = answer.spoken.attempt_count
            if (draft.answer, draft.attempt_count) != (answer, attempt_count):
                draft = _Draft(draft.number + 1, answer, attempt_count, is_open=True)
            if draft.is_open:
                await self._pause(await self._write(peers, session_id, claim, draft, answer))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()

    async def _write(
        self,
        peers: Peers,
        session_id: str,
        claim: transcript_pb.WriterClaim,
        draft: _Draft,
        answer: _SpokenAnswer,
    ) -> float:
        """Write the next piece, and return the pause before the one after it."""
        text = answer.spoken.piece(draft.offset)
        if not text:
            return 0.0
        request = pb.WriteDraftRequest(
            session_id=session_id,
            claim=claim,
            number=draft.number,
            after_seq=answer.after_seq,
            model=answer.spoken.model,
            offset=draft.offset,
            text=text,
        )
        began = asyncio.get_running_loop().time()
        try:
            # A trace would have ten spans for each second of an answer.
            with continue_trace(unrecorded_traceparent()):
                written = await peers.transcript.unary(
                    peers.live.WriteDraft, request, timeout_seconds=CALL_SECONDS
                )
        except MeshError as error:
            raise_if_cancelled()
            if error.reason not in TRANSIENT:
                draft.is_open = False
                log.info("draft not written", reason=error.reason.value)
                return 0.0
            self._spoke.set()
            return _OUTAGE_PAUSE_SECONDS
        draft.offset, draft.is_open = written.end_offset, written.accepts_more
        self._spoke.set()  # A piece is bounded, the server may have lost some, and more was said.
        return max(0.0, began + _PAUSE_SECONDS - asyncio.get_running_loop().time())


@asynccontextmanager
async def written_drafts(
    drafts: Drafts, peers: Peers, session_id: str, claim: transcript_pb.WriterClaim
) -> AsyncIterator[None]:
    """Write the drafts of the run during the block."""
    task = asyncio.create_task(drafts.follow(peers, session_id, claim), name="write drafts")
    try:
        yield
    finally:
        drafts.close()
        try:
            await asyncio.wait({task}, timeout=_LAST_CALL_SECONDS)
        finally:
            task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, Exception):
            log.error("drafts not written", exc_info=ended)
