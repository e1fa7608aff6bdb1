"""The turns of a run whose model works with the tools of a worker."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, Message
from spawnmesh.model_router.v1.generation_pb2 import (
    STOP_REASON_LENGTH,
    STOP_REASON_REFUSAL,
    Completion,
    NamedImage,
)
from spawnmesh.model_router.v1.model_router_service_pb2 import GenerateRequest, GenerationEvent
from spawnmesh.transcript.v1 import live_service_pb2 as live
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcripts
from spawnmesh.transcript.v1.compaction_service_pb2 import CompactAsWriterRequest, CompactAsWriterResponse
from spawnmesh.transcript.v1.compaction_service_pb2_grpc import CompactionServiceStub
from spawnmesh.transcript.v1.entry_pb2 import Entry, EntryBody, EntryFilter, SystemNote
from spawnmesh.transcript.v1.live_service_pb2_grpc import LiveServiceStub
from spawnmesh_core.cancellation import cut_short
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_client.answer_limits import fit_answer, variants_with_fewer_arguments
from spawnmesh_client.drafts import Drafts, Spoken
from spawnmesh_client.model_calls import ModelOptions, add_usage, call_model, model_request
from spawnmesh_client.model_messages import messages_for_model
from spawnmesh_client.named_images import prompt_with_image, read_named_images
from spawnmesh_client.read_context import ReadContext
from spawnmesh_client.run_compaction import RunCompactions, fresh_tail
from spawnmesh_client.run_files import file_names, read_start
from spawnmesh_client.run_hooks import RunHooks
from spawnmesh_client.run_stops import NoAnswer, TurnCut
from spawnmesh_client.run_transcript import (
    entries_before,
    has_entry_after,
    holds_window,
    transcript_call,
    unless_taken_over,
)
from spawnmesh_client.side_task import side_task
from spawnmesh_client.tool_calls import CallMaker
from spawnmesh_client.tools import Tool
from spawnmesh_client.turn_effects import add_broken_attempt, add_turn_effects
from spawnmesh_client.turn_messages import calls_of, text_of
from spawnmesh_client.unfinished_turn import (
    INTERRUPTED_NOTE,
    OUTPUT_LIMIT_NOTE,
    OpenCall,
    cut_off_count,
    open_calls,
)

if TYPE_CHECKING:  # The context of a run has the loop.
    from spawnmesh_client.run_context import RunContext

DEFAULT_MAX_TURN_COUNT = 50
_LATE_TURN_COUNT = 5
_MAX_CUT_OFF_COUNT = 3
_STREAM_COUNT = 2
_COMPACTION_SECONDS = 600.0
_DRAFT_SECONDS = 10.0
_LAST_DRAFT_SECONDS = 0.2
_PAGE_SIZE = 100


@dataclass(slots=True)
class TurnRecord:
    """The turns of a run that models worked with tools in, counted over all workers that had it.

    - `offered`: the entry of the newest answer with its text, if nothing is behind it.
    - `has_final_effects`: tools were called whose effects can be neither undone nor repeated.
    - `is_last`: the run has no turn left for a revision.
    - `late_count`: the turns that it gets beyond its limit.
    """

    taken_count: int = 0
    is_counted: bool = False
    offered: tuple[str, str] | None = None
    has_final_effects: bool = False
    is_last: bool = False
    late_count: int = 0
    drafts: Drafts = field(default_factory=Drafts)
    compactions: RunCompactions = field(default_factory=RunCompactions)

    def has_turn_left(self, max_count: int) -> bool:
        """Return whether the run may take another turn."""
        return self.taken_count < max_count + self.late_count

    def grant_late_turns(self) -> None:
        """Grant a few turns for messages that came before the answer of the last turn, once."""
        if self.is_last:
            self.late_count = _LATE_TURN_COUNT

    def entry_of(self, text: str) -> str:
        """Return the entry that has this answer already, or an empty text."""
        return self.offered[0] if self.offered is not None and self.offered[1] == text else ""


@dataclass(frozen=True, slots=True)
class ToolLoop:
    """Take turns with a model and tools, until it answers without a call."""

    run_context: "RunContext"
    tools: dict[str, Tool]
    options: ModelOptions
    max_turn_count: int
    hooks: RunHooks

    async def run(self) -> Completion:
        """Return the answer, whose entry is the newest one of the transcript."""
        turns = self._turns
        if not turns.is_counted:
            await self._count_earlier_turns()
            turns.is_counted = True
        calls = CallMaker(self.run_context, self.tools, self.hooks)
        read = (await self._context.assemble()).entries if turns.taken_count else []
        try:
            if opened := open_calls(read, self.run_context.run_id):
                await self.hooks.refresh()
                await calls.finish(opened)
        except TurnCut:
            pass  # The first turn reads the message.
        async with self._written_drafts():
            while turns.has_turn_left(self.max_turn_count) or self._pending(read) is not None:
                try:
                    answer = await self._take_turn(calls)
                except TurnCut:
                    continue
                if answer is not None:
                    turns.is_last = turns.taken_count >= self.max_turn_count
                    return answer
                read = []
        raise NoAnswer(Reason.TURN_LIMIT_EXCEEDED, f"no answer within {self.max_turn_count} turns")

    @property
    def _turns(self) -> TurnRecord:
        return self.run_context.turns

    @property
    def _context(self) -> ReadContext:
        return ReadContext(self.run_context, self.tools, self.options)

    async def _take_turn(self, calls: CallMaker) -> Completion | None:
        """Take one turn. Return the answer, or None if there is none yet.

        If another writer wrote while the model answered, discard the answer. Raises TurnCut after
        an urgent message, with all that was said and done in the transcript.
        """
        run = self.run_context
        await run.read_inbox()
        await self.hooks.refresh()
        fence, read = await self._context.open_window()
        pending = self._pending(read.entries)
        if pending is None and read.compaction_due and await self._compact():
            # In the window before, the summary would count as a takeover.
            fence, read = await self._context.open_window()
        entries = read.entries
        if pending is not None:
            run.turns.offered = pending.entry_id, _said(pending.body.message)
            return Completion(message=pending.body.message)
        run.turns.taken_count += 1
        try:
            completion = await self._answer(entries, fence)
        except MeshError as error:
            if error.reason is Reason.SESSION_BUDGET_EXCEEDED:
                run.turns.taken_count -= 1  # Nothing was said.
            raise
        answer = completion.message
        await self.hooks.publish_answer(completion)
        if completion.stop_reason == STOP_REASON_REFUSAL:
            return completion if await holds_window(run, fence) else None
        is_empty = not calls_of(answer) and not text_of(answer).strip()
        if completion.stop_reason == STOP_REASON_LENGTH and is_empty:
            await self._note_cut_off(entries, answer, fence)
            return None
        appended = await self._close_window(fence, answer)
        if appended is None:
            return None
        entry_id, kept = appended
        opened = [OpenCall(entry_id, index, call) for index, call in enumerate(calls_of(kept))]
        if opened:
            await calls.make(opened)
            return None
        run.turns.offered = entry_id, _said(answer)
        return completion

    async def _answer(self, entries: Sequence[Entry], fence: transcripts.Fence) -> Completion:
        """Return the model's answer. Of one that an interrupt cuts short, keep what was said."""
        with self._turns.drafts.writing(fence.seq) as spoken:
            try:
                return await cut_short(self._generated(entries, spoken), self.run_context.urgent, TurnCut)
            except TurnCut:
                await self._keep(spoken, fence)
                raise
            except asyncio.CancelledError:
                if self.run_context.is_interrupted:
                    await self._keep(spoken, fence)
                raise

    async def _keep(self, spoken: Spoken, fence: transcripts.Fence) -> None:
        if spoken.message is not None:
            await self._close_window(fence, spoken.message, INTERRUPTED_NOTE)

    async def _generated(self, entries: Sequence[Entry], spoken: Spoken) -> Completion:
        run, request = self.run_context, await self._request(entries)
        peer = run.mesh.wire.service("model-router")
        await self.hooks.change_request(request)

        def take(event: GenerationEvent) -> None:
            spoken.take(event)
            if event.HasField("text_delta") and self.options.on_text is not None:
                self.options.on_text(event.text_delta.text)

        for number in range(1, _STREAM_COUNT + 1):
            try:
                return await call_model(peer, request, run.usage, run.run_events, take)
            except MeshError as error:
                if error.reason is not Reason.STREAM_BROKEN or number == _STREAM_COUNT:
                    raise
                add_broken_attempt(request, error)
        raise AssertionError("the last attempt returns or raises")

    async def _request(self, entries: Sequence[Entry]) -> GenerateRequest:
        """Return the request for the next answer, with what the turn has done so far."""
        run = self.run_context
        request = model_request(run.claimed, self.options, messages_for_model(entries))
        request.tools.extend(one.declaration for one in self.tools.values())
        request.named_images.extend(await self._named_images(entries))
        turn = await run.turns.compactions.current_turn(
            entries, run.run_id, self.tools.__contains__, partial(entries_before, run)
        )
        await add_turn_effects(request, turn, run.claimed.run.epoch, partial(has_entry_after, run))
        return request

    async def _named_images(self, entries: Sequence[Entry]) -> list[NamedImage]:
        """Return the images of the workspace that the user's newest message names."""
        prompt = prompt_with_image(entries)
        if not prompt:
            return []
        workspace, receipt = self.run_context.workspace, self.run_context.session.receipt
        rel_dir = receipt.rel_dir if receipt is not None else ""

        def read() -> list[NamedImage]:
            attached = file_names(workspace, rel_dir) if rel_dir else []
            return read_named_images(prompt, attached, rel_dir, partial(read_start, workspace))

        return await asyncio.to_thread(read)

    async def _close_window(
        self, fence: transcripts.Fence, answer: Message, *notes: SystemNote
    ) -> tuple[str, Message] | None:
        """Append an answer and the notes behind it. Return the entry's id and the stored answer.

        Return None if another writer wrote since the fence. An answer that the transcript does not
        keep is stored without the arguments of its calls.
        """
        return await unless_taken_over(self.run_context, self._append_answer(fence, answer, *notes))

    async def _append_answer(
        self, fence: transcripts.Fence, answer: Message, *notes: SystemNote
    ) -> tuple[str, Message]:
        run, kept = self.run_context, fit_answer(answer)
        key = f"answer:{run.run_id}:{run.claimed.run.epoch}:{run.turns.taken_count}"
        smaller = variants_with_fewer_arguments(kept)
        behind = [EntryBody(system_note=note) for note in notes]
        while True:
            try:
                return await run.append_entries(key, EntryBody(message=kept), *behind, fence=fence), kept
            except MeshError as error:
                if error.reason not in (Reason.INVALID_REQUEST, Reason.ATTACHMENT_CONTENT_IS_MARKER):
                    raise
                if (variant := next(smaller, None)) is None:
                    raise
                kept = variant

    async def _note_cut_off(
        self, entries: Sequence[Entry], answer: Message, fence: transcripts.Fence
    ) -> None:
        """Append a note, so that the next turn tells the model that its answer was cut off."""
        if cut_off_count(entries, self.run_context.run_id) + 1 >= _MAX_CUT_OFF_COUNT:
            if not await holds_window(self.run_context, fence):
                return
            raise NoAnswer(
                Reason.OUTPUT_LIMIT_REACHED,
                f"{answer.model} reached its output limit before it said anything,"
                f" {_MAX_CUT_OFF_COUNT} times in a row",
            )
        await self._close_window(fence, answer, OUTPUT_LIMIT_NOTE)

    def _pending(self, entries: Sequence[Entry]) -> Entry | None:
        """Return the answer of a model at the end of the transcript: it was not offered yet."""
        newest = entries[-1] if entries else None
        if newest is None or newest.writer.run_id != self.run_context.run_id:
            return None
        message = newest.body.message
        is_answer = message.role == ROLE_ASSISTANT and bool(message.model) and not calls_of(message)
        return newest if is_answer else None

    async def _compact(self) -> bool:
        """Have the oldest part of the transcript summarized. Return True if it was."""
        run = self.run_context
        peer = run.mesh.wire.service("transcript")
        request = CompactAsWriterRequest(
            session_id=run.session.session_id,
            claim=run.writer,
            models=[self.options.model] if self.options.model else run.claimed.models,
            fresh_tail=fresh_tail(self._context.token_budget),
        )

        async def call(asked: CompactAsWriterRequest) -> CompactAsWriterResponse:
            stub = CompactionServiceStub(peer.channel)
            return await peer.unary(stub.CompactAsWriter, asked, timeout_seconds=_COMPACTION_SECONDS)

        return await run.turns.compactions.compact(request, call, partial(add_usage, run.usage))

    async def _count_earlier_turns(self) -> None:
        """Count the turns that this run took on earlier workers, and their tokens."""
        run, turns = self.run_context, self._turns
        claimed = run.claimed
        if claimed.run.epoch <= claimed.first_epoch:
            return
        used = type(run.usage)()
        request = transcripts.ListEntriesRequest(
            session_id=run.session.session_id,
            page_size=_PAGE_SIZE,
            before_seq=0,
            filter=EntryFilter(roles=[ROLE_ASSISTANT]),
        )
        while True:
            page = await transcript_call(run, "ListEntries", request)
            for entry in reversed(page.entries):
                if 0 < entry.writer.epoch < claimed.first_epoch:
                    page.next_page_token = ""
                    break
                message = entry.body.message
                if entry.writer.run_id == run.run_id and message.model:
                    turns.taken_count += 1
                    add_usage(used, message.usage)
                    names = {call.name for call in calls_of(message)} & self.tools.keys()
                    turns.has_final_effects |= any(not self.tools[name].idempotent for name in names)
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        # A claim after a wait for a budget has the tokens before it, with those of these answers.
        if used.input_token_count > run.usage.input_token_count:
            run.usage.CopyFrom(used)

    def _written_drafts(self) -> AbstractAsyncContextManager[None]:
        """Show answers to watchers during the block. A failure does not harm the run."""
        run = self.run_context
        peer = run.mesh.wire.service("transcript")

        async def write(request: live.WriteDraftRequest) -> live.WriteDraftResponse:
            stub = LiveServiceStub(peer.channel)
            return await peer.unary(stub.WriteDraft, request, timeout_seconds=_DRAFT_SECONDS)

        drafts = run.turns.drafts = Drafts(run.turns.drafts.newest_number)
        work = drafts.follow(write, run.session.session_id, run.writer)
        return side_task(work, drafts.close, "write drafts", _LAST_DRAFT_SECONDS)


def _said(message: Message) -> str:
    return "\n".join(block.text.text for block in message.content if block.HasField("text"))
