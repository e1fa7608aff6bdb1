"""The finalize saga: the hooks judge the draft, then it is superseded or becomes the answer."""

from dataclasses import dataclass, replace

from spawnmesh.hook.v1.event_pb2 import BeforeAgentFinalizeEvent
from spawnmesh.hook.v1.revision_pb2 import RevisionCap
from spawnmesh.transcript.v1.entry_pb2 import (
    LABEL_KIND_FINAL,
    LABEL_KIND_SUPERSEDED,
    EntryBody,
    Label,
    SystemNote,
)
from spawnmesh.transcript.v1.transcript_service_pb2 import WriterClaim
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_core.secrets import mask_text
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.cpu_workers import CpuWorkers
from spawnmesh_runtime.telemetry import traced

from spawnmesh_session.clients.hooks import Hooks
from spawnmesh_session.clients.transcripts import Transcripts, superseding_label
from spawnmesh_session.domain.drafts import (
    Acceptance,
    Draft,
    Interrupted,
    MessagesPending,
    Revision,
    decided_text_key_of,
    is_answer,
    is_decided,
    require_current,
    require_decided_text,
    require_open,
)
from spawnmesh_session.domain.enabled_hooks import Hook
from spawnmesh_session.domain.run_events import answer_finalized, revision_requested, revisions_capped
from spawnmesh_session.domain.runs import (
    Run,
    RunOutcome,
    RunState,
    UngrantedRevision,
    require_lease,
)
from spawnmesh_session.metrics import RunMetrics
from spawnmesh_session.operations.run_termination import RunTerminator
from spawnmesh_session.store import drafts, events, inbox, runs, sessions
from spawnmesh_session.store.drafts import FinalizingRun


@dataclass(frozen=True, slots=True)
class _AbandonedDraft:
    """A draft that an earlier runner was finalizing when it was lost."""

    session_id: str
    entry_id: str


@dataclass(frozen=True, slots=True)
class FinalizeSaga:
    """Finalizes runs. Every step is idempotent and keyed by the draft's entry and its text."""

    database: Database
    transcripts: Transcripts
    hooks: Hooks
    terminator: RunTerminator
    workers: CpuWorkers
    metrics: RunMetrics

    async def finalize(self, tenant_id: str, draft: Draft) -> Run | Revision | MessagesPending | Interrupted:
        """Return the SUCCEEDED run, or the reason why the run continues.

        A run that continues is RUNNING again, also if a hook fails. Once the draft is decided,
        senders wait, so the run ends with the draft that the transcript labels final.
        """
        while isinstance(finalizing := await self._begin(tenant_id, draft), _AbandonedDraft):
            await self._withdraw(tenant_id, finalizing, draft)
        if isinstance(finalizing, MessagesPending | Interrupted):
            return finalizing
        run = finalizing.run
        if finalizing.is_decided:
            async with traced("finalize commit"):
                return await self._label_final(tenant_id, run.session_id, draft)
        draft = await self._masked_draft(tenant_id, finalizing, draft)
        require_decided_text(run, draft)
        if run.state == RunState.SUCCEEDED:
            return run
        # Of a draft that is decided: it is kept with the decision. Or no plugin judges the draft.
        acceptance = Acceptance()
        if not run.decided_entry_id and Hook.BEFORE_AGENT_FINALIZE in finalizing.hooks:
            try:
                async with traced("finalize gate"):
                    answer = await self._dispatch_gate(finalizing, draft)
            except MeshError:
                await self._resume(tenant_id, draft)
                raise
            if isinstance(answer, Revision):
                return await self._revise(tenant_id, run.session_id, draft, answer)
            acceptance = answer
        async with traced("finalize commit"):
            return await self._make_final(tenant_id, run.session_id, draft, acceptance)

    async def _begin(
        self, tenant_id: str, draft: Draft
    ) -> FinalizingRun | MessagesPending | Interrupted | _AbandonedDraft:
        while True:
            begun = await self._begin_or_decide(tenant_id, draft)
            if begun is not None:
                return begun
            found = await drafts.get_finalizing(self.database, tenant_id, draft.run_id)
            run = found.run
            if is_answer(run, draft):
                return found
            require_open(run, draft)
            if is_decided(run):
                return found
            if run.interrupt_time is not None:
                return Interrupted()
            if run.decided_entry_id:
                return _AbandonedDraft(run.session_id, run.decided_entry_id)
            if found.unread_count:
                return MessagesPending(found.unread_count)
            # The message that was waiting was acknowledged meanwhile.

    async def _begin_or_decide(self, tenant_id: str, draft: Draft) -> FinalizingRun | None:
        """Begin, and decide at once if nothing judges or masks the draft: then `is_decided`.

        Return None if the run cannot begin.
        """
        async with self.database.pipelined(tenant_id) as connection:
            begun = await drafts.begin_finalizing(
                connection, tenant_id, draft.run_id, draft.epoch, draft.entry_id
            )
            if begun is None or begun.is_judged:
                return begun
            decided = await drafts.send_decision(
                connection,
                tenant_id,
                draft.run_id,
                draft.epoch,
                draft.entry_id,
                draft.text_key,
                Acceptance(),
            )
        run = await decided.fetch()
        # No decision: a message came meanwhile, for example.
        return begun if run is None else replace(begun, run=run, is_decided=True)

    async def _withdraw(self, tenant_id: str, abandoned: _AbandonedDraft, draft: Draft) -> None:
        """Supersede an earlier runner's draft, which may already be labelled final."""
        async with self.database.pipelined(tenant_id) as connection:
            await drafts.supersede_decided(
                connection, tenant_id, draft.run_id, draft.epoch, abandoned.entry_id
            )
        try:
            await self._append(tenant_id, abandoned.session_id, draft, *superseding_label(abandoned.entry_id))
        except MeshError as error:
            if not _is_absent_entry(error):  # An absent entry has no label.
                raise
        await self._withdraw_decision(tenant_id, draft, abandoned.entry_id)

    async def _withdraw_decision(self, tenant_id: str, draft: Draft, entry_id: str) -> None:
        async with self.database.pipelined(tenant_id) as connection:
            await drafts.withdraw_decision(connection, tenant_id, draft.run_id, draft.epoch, entry_id)

    async def _dispatch_gate(self, finalizing: FinalizingRun, draft: Draft) -> Revision | Acceptance:
        """Dispatch before_agent_finalize. A repeat of the same draft gets the same answer."""
        event = BeforeAgentFinalizeEvent(
            session_id=finalizing.run.session_id,
            run_id=draft.run_id,
            agent_id=finalizing.agent_id,
            revision_count=finalizing.run.revision_count,
            draft_text=draft.text,
            draft_bytes=len(draft.text.encode()),
            has_final_effects=draft.has_final_effects,
            is_last_turn=draft.is_last_turn,
        )
        answer = await self.hooks.before_finalize(event, draft.dispatch_request_id)
        if answer.decision.HasField("revise"):
            return Revision(
                answer.decision.revise.reason,
                answer.revision_number,
                answer.max_revision_count,
                tuple(answer.decided_by),
            )
        return Acceptance(
            tuple(
                UngrantedRevision(capped.plugin, RevisionCap.Name(capped.cap).removeprefix("REVISION_CAP_"))
                for capped in answer.capped_revisions
            ),
            tuple(answer.decided_by) if answer.decision.HasField("finalize") else (),
        )

    async def _resume(self, tenant_id: str, draft: Draft) -> None:
        """FINALIZING -> RUNNING, unless another runner holds the run."""
        async with self.database.pipelined(tenant_id) as connection:
            await drafts.resume_run(connection, tenant_id, draft.run_id, draft.epoch)

    async def _revise(
        self, tenant_id: str, session_id: str, draft: Draft, revision: Revision
    ) -> Revision | Interrupted:
        """Supersede the draft, append the instruction, and make the run RUNNING again.

        The instruction is for a run that goes on: the draft of an interrupted run stays as it is.
        """
        found = await drafts.get_finalizing(self.database, tenant_id, draft.run_id)
        if found.run.interrupt_time is not None:
            await self._resume(tenant_id, draft)
            require_lease(found.run, draft.epoch)
            return Interrupted()
        note = (
            f"Your answer was not accepted (revision {revision.number} of at most "
            f"{revision.max_revision_count}). Work on it again and answer anew:\n\n{revision.instruction}"
        )
        entries = [
            EntryBody(label=Label(entry_id=draft.entry_id, kind=LABEL_KIND_SUPERSEDED)),
            EntryBody(system_note=SystemNote(topic="revision", text=note)),
        ]
        key = f"revise:v1:{draft.entry_id}:{revision.number}"
        await self._append(tenant_id, session_id, draft, key, entries)
        async with self.database.pipelined(tenant_id) as connection:
            await sessions.lock_session(connection, tenant_id, session_id)
            run = await runs.lock_run(connection, tenant_id, draft.run_id)
            require_lease(run, draft.epoch)
            await drafts.resume_run(
                connection,
                tenant_id,
                draft.run_id,
                draft.epoch,
                revision_count=revision.number,
                superseded_entry_id=draft.entry_id,
            )
            if revision.number > run.revision_count:
                self.metrics.revised()
                event = revision_requested(revision.plugins, revision.number, revision.max_revision_count)
                await events.append_event(
                    connection,
                    tenant_id,
                    session_id,
                    event.kind,
                    run_id=draft.run_id,
                    run_state=RunState.RUNNING,
                    detail=event.detail,
                )
        return revision

    async def _make_final(
        self, tenant_id: str, session_id: str, draft: Draft, acceptance: Acceptance
    ) -> Run | MessagesPending | Interrupted:
        decided = await self._decide(tenant_id, draft, acceptance)
        if isinstance(decided, MessagesPending | Interrupted) or decided.state == RunState.SUCCEEDED:
            return decided
        return await self._label_final(tenant_id, session_id, draft)

    async def _label_final(self, tenant_id: str, session_id: str, draft: Draft) -> Run:
        """Label the decided draft final, and end the run with it."""
        label = EntryBody(label=Label(entry_id=draft.entry_id, kind=LABEL_KIND_FINAL))
        key = f"final:v1:{draft.entry_id}"
        try:
            has_released = await self._append(
                tenant_id, session_id, draft, key, [label], releases_writer=True
            )
        except MeshError as error:
            if _is_absent_entry(error):  # It never had a label, so the run may offer another draft.
                await self._withdraw_decision(tenant_id, draft, draft.entry_id)
            raise
        return await self._commit(tenant_id, draft, has_released)

    async def _decide(
        self, tenant_id: str, draft: Draft, acceptance: Acceptance
    ) -> Run | MessagesPending | Interrupted:
        """Decide that the draft is the answer, unless a message or an interrupt came meanwhile.

        The sender of such a message was told that this run will read it. Raise RUN_STATE for a
        superseded draft, since no later run would read such an answer.
        """
        while True:
            decision = await drafts.decide_run(
                self.database,
                tenant_id,
                draft.run_id,
                draft.epoch,
                draft.entry_id,
                draft.text_key,
                acceptance,
            )
            run = decision.decided or decision.before
            require_decided_text(run, draft)
            if is_answer(run, draft):
                return run
            require_open(run, draft)
            if is_decided(run):
                return run
            async with self.database.pipelined(tenant_id) as connection:
                await drafts.resume_run(connection, tenant_id, draft.run_id, draft.epoch)
                unread_count = await inbox.count_inbox(connection, tenant_id, run.session_id)
            if run.interrupt_time is not None:
                return Interrupted()
            require_current(run, draft)
            if unread_count:
                return MessagesPending(unread_count)
            # The message that was waiting was acknowledged meanwhile.

    async def _append(
        self,
        tenant_id: str,
        session_id: str,
        draft: Draft,
        key: str,
        entries: list[EntryBody],
        *,
        releases_writer: bool = False,
    ) -> bool:
        """Append in the run's name. Return False for a repeat, which releases nothing.

        Raise RUN_LEASE_LOST if the run lost its claim with its lease.
        """
        claim = WriterClaim(run_id=draft.run_id, epoch=draft.epoch)
        try:
            return await self.transcripts.append(
                session_id, key, entries, claim, releases_writer=releases_writer
            )
        except MeshError as error:
            if error.reason is Reason.WRITER_CLAIM_LOST:
                async with self.database.pipelined(tenant_id) as connection:
                    require_lease(await runs.get_run(connection, tenant_id, draft.run_id), draft.epoch)
            raise

    async def _masked_draft(self, tenant_id: str, finalizing: FinalizingRun, draft: Draft) -> Draft:
        """Return the draft, masked if the tenant masks secrets, or did when it was decided."""
        if not finalizing.masks_secrets and decided_text_key_of(finalizing.run, draft) in (
            "",
            draft.text_key,
        ):
            return draft
        text = await self.workers.run(tenant_id, len(draft.text.encode()), mask_text, draft.text)
        return replace(draft, text=text, is_masked=True, offered_key=draft.text_key)

    async def _commit(self, tenant_id: str, draft: Draft, has_released_writer: bool) -> Run:
        outcome = RunOutcome(
            state=RunState.SUCCEEDED,
            result_text=draft.text,
            usage=draft.usage,
            draft_entry_id=draft.entry_id,
            is_masked=draft.is_masked,
        )
        async with self.database.pipelined(tenant_id) as connection:
            locked = await runs.lock_run_with_sessions(connection, tenant_id, draft.run_id)
            require_decided_text(locked.run, draft)
            if is_answer(locked.run, draft):
                return locked.run
            require_open(locked.run, draft)
            await self._append_decisions(connection, tenant_id, locked.run)
            ended = await self.terminator.terminate(
                connection,
                tenant_id,
                locked,
                outcome,
                epoch=draft.epoch,
                has_released_writer=has_released_writer,
            )
        run = await ended.fetch() if ended is not None else locked.run
        if run is None:
            raise RuntimeError("a run that was locked and open was not ended")
        return run

    async def _append_decisions(self, connection: Connection, tenant_id: str, run: Run) -> None:
        """Append events if plugins wanted a revision of the answer, or declared it final."""
        decisions = [
            *([revisions_capped(run.capped_revisions)] if run.capped_revisions else []),
            *([answer_finalized(run.finalized_by)] if run.finalized_by else []),
        ]
        for event in decisions:
            await events.append_event(
                connection,
                tenant_id,
                run.session_id,
                event.kind,
                run_id=run.run_id,
                run_state=RunState.FINALIZING,
                detail=event.detail,
            )


def _is_absent_entry(error: MeshError) -> bool:
    return refused_with(error, Reason.NOT_FOUND, Reason.INVALID_REQUEST)
