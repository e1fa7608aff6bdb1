"""The finalize saga: the hooks are asked, then the draft is superseded or becomes the answer."""

import hashlib
from dataclasses import dataclass, replace

import structlog
from psycopg import AsyncCursor
from psycopg.rows import DictRow
from spawnmesh.hook.v1.event_pb2 import BeforeAgentFinalizeEvent
from spawnmesh.transcript.v1.entry_pb2 import LABEL_KIND_FINAL, LABEL_KIND_SUPERSEDED, EntryBody, Label, SystemNote
from spawnmesh.transcript.v1.transcript_service_pb2 import WriterClaim
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.telemetry import traced

from spawnmesh_session.domain import TERMINAL_RUN_STATES, Ending, EventKind, RunState
from spawnmesh_session.labels import withdrawal_of
from spawnmesh_session.operations.claim import lease_lost, require_held
from spawnmesh_session.operations.endings import Endings, LockedRun, lock_run
from spawnmesh_session.operations.masking import masked
from spawnmesh_session.peers import Hooks, Transcripts
from spawnmesh_session.run_metrics import RunMetrics
from spawnmesh_session.store import runs, sessions

MAX_REVISION_COUNT = 3  # The hook service keeps the count and the bound; this one only tells plugins what to expect.


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft offered as the answer, by the runner that holds the run at this epoch. `text` is what is judged and delivered, without secrets
    where it `is_masked`; `offered_key` names the text as it was offered, if it was another."""

    run_id: str
    epoch: int
    entry_id: str
    text: str
    usage: dict[str, int]
    has_final_effects: bool = False
    is_last_turn: bool = False
    is_masked: bool = False
    offered_key: str = ""

    @property
    def text_key(self) -> str:
        """Names the text as that of this entry."""
        return f"{self.entry_id}:{hashlib.sha256(self.text.encode()).hexdigest()}"

    @property
    def dispatch_key(self) -> str:
        """Names what the hooks judge."""
        return f"{self.run_id}:{self.text_key}:{int(self.has_final_effects)}"


@dataclass(frozen=True, slots=True)
class Revised:
    """The draft is not the answer yet."""

    instruction: str
    number: int
    max_revision_count: int


@dataclass(frozen=True, slots=True)
class Pending:
    """Messages wait; the draft was not made final."""

    count: int


@dataclass(frozen=True, slots=True)
class Begun:
    """The run, which is FINALIZING with this draft or has ended with it; and its session's agent."""

    run: DictRow
    agent_id: str


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A draft that was being made the answer when its runner or this service was lost; the run has been claimed since."""

    session_id: str
    entry_id: str


@dataclass(frozen=True, slots=True)
class FinalizeSaga:
    """Every step is idempotent and keyed by the draft's entry and its text, so that a repeat after a crash goes on where it stopped."""

    database: Database
    transcripts: Transcripts
    hooks: Hooks
    endings: Endings
    metrics: RunMetrics

    async def run(self, tenant_id: str, draft: Draft) -> DictRow | Revised | Pending:
        """The run, SUCCEEDED; or why it is not. A run that is not ended is RUNNING again, also when a hook failed.

        Once it is decided that the draft is the answer, no message is put before it: whoever sends one waits for the end. So what the transcript
        says is final is what the run ends with.
        """
        while isinstance(begun := await self._begin(tenant_id, draft), Abandoned):
            await self._withdraw(tenant_id, begun, draft)
        if isinstance(begun, Pending):
            return begun
        run = begun.run
        draft = await _as_judged(run, draft)
        _require_text(run, draft)
        if run["state"] == RunState.SUCCEEDED:
            return run
        if not run["final_entry_id"]:
            try:
                async with traced("finalize gate"):
                    verdict = await self._ask(begun, draft)
            except MeshError:
                await self._work_on(tenant_id, draft)
                raise
            if verdict is not None:
                return await self._revise(tenant_id, run, draft, verdict)
        async with traced("finalize commit"):
            return await self._make_final(tenant_id, run, draft)

    async def _begin(self, tenant_id: str, draft: Draft) -> Begun | Pending | Abandoned:
        run = await runs.begin_finalizing(self.database, tenant_id, draft.run_id, draft.epoch, draft.entry_id)
        if run["has_begun"] or _is_answer(run, draft):
            return Begun(run, run["agent_id"])
        require_open(run, draft)
        if run["state"] == RunState.FINALIZING and run["final_entry_id"]:
            return Begun(run, run["agent_id"])
        if run["final_entry_id"]:
            return Abandoned(run["session_id"], run["final_entry_id"])
        return Pending(run["waiting"])

    async def _withdraw(self, tenant_id: str, abandoned: Abandoned, draft: Draft) -> None:
        """An earlier runner's draft, which the transcript may call final, is not the answer: its run got something to read first."""
        try:
            await self._append(tenant_id, abandoned.session_id, draft, *withdrawal_of(abandoned.entry_id))
        except MeshError as error:
            if not _is_no_entry(error):  # What the transcript does not have, it does not call final.
                raise
        await self._withdraw_decision(tenant_id, draft, abandoned.entry_id)

    async def _withdraw_decision(self, tenant_id: str, draft: Draft, entry_id: str) -> None:
        async with self.database.pipelined(tenant_id) as connection:
            await runs.withdraw_decision(connection, tenant_id, draft.run_id, draft.epoch, entry_id)

    async def _ask(self, begun: Begun, draft: Draft) -> Revised | None:
        run = begun.run
        event = BeforeAgentFinalizeEvent(
            session_id=run["session_id"],
            run_id=draft.run_id,
            agent_id=begun.agent_id,
            revision_count=run["revision_count"],
            max_revision_count=MAX_REVISION_COUNT,
            draft_text=draft.text,
            draft_bytes=len(draft.text.encode()),
            has_final_effects=draft.has_final_effects,
        )
        answer = await self.hooks.before_finalize(event, draft.dispatch_key)
        if not answer.decision.HasField("revise"):
            return None
        if draft.is_last_turn:  # Sent back it would be thrown away: past its bounds a draft is delivered.
            structlog.get_logger().warning("revision_capped", run=draft.run_id, plugins=list(answer.decided_by))
            return None
        return Revised(answer.decision.revise.reason, answer.revision_number, answer.max_revision_count)

    async def _work_on(self, tenant_id: str, draft: Draft) -> None:
        """FINALIZING -> RUNNING, unless it is somebody else's meanwhile."""
        async with self.database.pipelined(tenant_id) as connection:
            await runs.set_state(connection, tenant_id, draft.run_id, draft.epoch, RunState.RUNNING)

    async def _revise(self, tenant_id: str, begun: DictRow, draft: Draft, revised: Revised) -> Revised:
        session_id = begun["session_id"]
        note = (
            f"Your answer was not accepted (revision {revised.number} of at most {revised.max_revision_count}). "
            f"Work on it again and answer anew:\n\n{revised.instruction}"
        )
        entries = [
            EntryBody(label=Label(entry_id=draft.entry_id, kind=LABEL_KIND_SUPERSEDED)),
            EntryBody(system_note=SystemNote(topic="revision", text=note)),
        ]
        await self._append(tenant_id, session_id, draft, f"revise:v1:{draft.entry_id}:{revised.number}", entries)
        async with self.database.pipelined(tenant_id) as connection:
            await sessions.lock(connection, tenant_id, session_id)
            run = await runs.lock(connection, tenant_id, draft.run_id)
            require_held(run, draft.epoch)
            await runs.set_state(
                connection,
                tenant_id,
                draft.run_id,
                draft.epoch,
                RunState.RUNNING,
                revision_count=revised.number,
                superseded_entry_id=draft.entry_id,
            )
            if revised.number > run["revision_count"]:
                self.metrics.revised()
                await sessions.append_event(
                    connection,
                    tenant_id,
                    session_id,
                    EventKind.REVISION,
                    run_id=draft.run_id,
                    run_state=RunState.RUNNING,
                    detail=f"revision {revised.number} of {revised.max_revision_count}",
                )
        return revised

    async def _make_final(self, tenant_id: str, begun: DictRow, draft: Draft) -> DictRow | Pending:
        decided = await self._decide(tenant_id, draft)
        if isinstance(decided, Pending) or decided["state"] == RunState.SUCCEEDED:
            return decided
        label = EntryBody(label=Label(entry_id=draft.entry_id, kind=LABEL_KIND_FINAL))
        try:
            await self._append(tenant_id, begun["session_id"], draft, f"final:v1:{draft.entry_id}", [label])
        except MeshError as error:
            if _is_no_entry(error):  # Nor has it ever been called final: the run is free for another draft.
                await self._withdraw_decision(tenant_id, draft, draft.entry_id)
            raise
        return await self._commit(tenant_id, draft)

    async def _decide(self, tenant_id: str, draft: Draft) -> DictRow | Pending:
        """The draft is the answer, unless a message came while the hooks were asked: whoever sent it was told that this run reads it.

        Raises RUN_STATE for a draft that the transcript calls superseded: no later run would read such an answer.
        """
        run = await runs.decide(self.database, tenant_id, draft.run_id, draft.epoch, draft.entry_id, draft.text_key)
        _require_text(run, draft)
        if _is_answer(run, draft):
            return run
        require_open(run, draft)
        if run["state"] == RunState.FINALIZING:
            return run
        if not run["waiting"]:
            raise _superseded(draft)
        return Pending(run["waiting"])

    async def _append(self, tenant_id: str, session_id: str, draft: Draft, key: str, entries: list[EntryBody]) -> None:
        """Appends in the run's name; RUN_LEASE_LOST where it has lost its transcript because it has lost its lease."""
        claim = WriterClaim(run_id=draft.run_id, epoch=draft.epoch)
        try:
            await self.transcripts.append(session_id, key, entries, claim)
        except MeshError as error:
            if error.reason is Reason.WRITER_CLAIM_LOST:
                async with self.database.pipelined(tenant_id) as connection:
                    require_held(await runs.get(connection, tenant_id, draft.run_id), draft.epoch)
            raise

    async def _commit(self, tenant_id: str, draft: Draft) -> DictRow:
        ending = Ending(
            state=RunState.SUCCEEDED,
            result_text=draft.text,
            usage=draft.usage,
            draft_entry_id=draft.entry_id,
            is_masked=draft.is_masked,
        )
        async with self.database.pipelined(tenant_id) as connection:
            locked = await lock_run(connection, tenant_id, draft.run_id)
            _require_text(locked.run, draft)
            if _is_answer(locked.run, draft):
                return locked.run
            require_open(locked.run, draft)
            ended = await self.endings.end_run(connection, tenant_id, locked, ending, epoch=draft.epoch)
        return await _as_ended(ended, locked)

    async def fail(self, tenant_id: str, run_id: str, epoch: int, ending: Ending) -> DictRow:
        """Ends the run as FAILED, for the runner that holds it; the same again at this epoch answers the run as it is."""
        async with self.database.pipelined(tenant_id) as connection:
            locked = await lock_run(connection, tenant_id, run_id)
            if locked.run["state"] in TERMINAL_RUN_STATES:
                return _ended_before(locked.run, epoch, ending)
            require_held(locked.run, epoch)
            ended = await self.endings.end_run(connection, tenant_id, locked, ending, epoch=epoch)
        return await _as_ended(ended, locked)


def _ended_before(run: DictRow, epoch: int, ending: Ending) -> DictRow:
    """The run, which ended in this way at this epoch. Raises RUN_LEASE_LOST and RUN_STATE where it did not."""
    if run["epoch"] != epoch:
        raise lease_lost(run, epoch)
    if run["state"] != ending.state:
        raise MeshError(
            Reason.RUN_STATE,
            f"run {run['run_id']} has ended as {run['state']} already",
            facts={"run_id": run["run_id"], "state": run["state"]},
        )
    return run


async def _as_ended(ended: AsyncCursor[DictRow] | None, locked: LockedRun) -> DictRow:
    """The run as it was ended, or as it was found where it was not."""
    if ended is None:
        return locked.run
    run = await ended.fetchone()
    if run is None:
        raise RuntimeError("a run that was locked and open was not ended")
    return run


def _is_no_entry(error: MeshError) -> bool:
    return refused_with(error, Reason.NOT_FOUND, Reason.INVALID_REQUEST)


def _is_answer(run: DictRow, draft: Draft) -> bool:
    return run["state"] == RunState.SUCCEEDED and bool(run["draft_entry_id"] == draft.entry_id)


async def _as_judged(run: DictRow, draft: Draft) -> Draft:
    """The draft without secrets, where the tenant has them masked, or had when it was decided that it is the answer."""
    if not run["masks_secrets"] and _decided_key(run, draft) in ("", draft.text_key):
        return draft
    return replace(draft, text=await masked(draft.text), is_masked=True, offered_key=draft.text_key)


def _decided_key(run: DictRow, draft: Draft) -> str:
    """Names the text with which it was decided that the draft is the answer; empty where it was not. A replica of the release before told of
    no text."""
    decided: str = run["final_text_key"]
    return decided if run["final_entry_id"] == draft.entry_id and decided.startswith(f"{draft.entry_id}:") else ""


def _require_text(run: DictRow, draft: Draft) -> None:
    """Raises RUN_STATE where the draft's entry is the answer with another text."""
    if _decided_key(run, draft) not in ("", draft.text_key, draft.offered_key):
        raise MeshError(
            Reason.RUN_STATE,
            f"it was decided with another text that draft {draft.entry_id} is the answer of run {draft.run_id}; offer the text that was judged",
            facts={"run_id": draft.run_id, "draft_entry_id": draft.entry_id},
        )


def _superseded(draft: Draft) -> MeshError:
    return MeshError(
        Reason.RUN_STATE,
        f"draft {draft.entry_id} was sent back or taken back, and no later context has it; append the answer anew, and offer that entry",
        facts={"run_id": draft.run_id, "draft_entry_id": draft.entry_id},
    )


def require_open(run: DictRow, draft: Draft) -> None:
    """Raises RUN_LEASE_LOST unless the run is held at the draft's epoch, and RUN_STATE where another draft is being made its answer."""
    require_held(run, draft.epoch)
    if run["state"] == RunState.FINALIZING and run["final_entry_id"] not in ("", draft.entry_id):
        raise MeshError(
            Reason.RUN_STATE,
            f"run {draft.run_id} is being ended with another draft",
            facts={"run_id": draft.run_id, "draft_entry_id": run["final_entry_id"]},
        )
