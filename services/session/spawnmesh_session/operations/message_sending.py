"""Messages on their way into a session's inbox, where its live run or a new run reads them."""

from dataclasses import dataclass

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_session.domain.inbox import check_inbox, message_key
from spawnmesh_session.domain.runs import (
    HELD_RUN_STATES,
    CallingRun,
    Run,
    check_queue,
    require_undecided,
)
from spawnmesh_session.domain.sessions import Session, SessionMode, SessionState
from spawnmesh_session.domain.spawns import spawn_limits_of
from spawnmesh_session.domain.tenants import masks_secrets, require_ready
from spawnmesh_session.operations.approval_withdrawal import withdraw_and_queue
from spawnmesh_session.operations.caller_lease import require_lease_of
from spawnmesh_session.operations.conflict_retry import retry_while_conflict
from spawnmesh_session.operations.masking import mask_secrets
from spawnmesh_session.operations.run_queueing import RunQueuer
from spawnmesh_session.store import inbox, runs, sessions, tenants


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to send. An urgent one stops the turn of the run that is live.

    With a `run_id`, a message that is not known yet is refused if another run is live.
    """

    request_id: str
    text: str
    is_urgent: bool = False
    run_id: str = ""


@dataclass(slots=True)
class _MessageText:
    """A message's text, with its masked form, which is computed once and on demand."""

    plain: str
    _masked: str | None = None

    async def masked(self) -> str:
        """Return the text without secrets."""
        if self._masked is None:
            self._masked = await mask_secrets(self.plain)
        return self._masked

    async def equals(self, stored: str) -> bool:
        """Return whether `stored` is this text, masked or not."""
        return stored == self.plain or stored == await self.masked()


@dataclass(frozen=True, slots=True)
class MessageSender:
    """Sends messages. A session without a live run gets one."""

    database: Database
    queuer: RunQueuer

    async def send(
        self, tenant_id: str, session_id: str, calling_run: CallingRun | None, message: NewMessage
    ) -> Run:
        """Put the message into the inbox, once for each request_id.

        Return the run that will read it.

        Wait up to 2 s while a run is being ended with its answer, which this message cannot
        precede; then raise CONFLICT. If the tenant masks secrets, the stored text holds none. A
        calling run must hold its lease, and may send only within its family.
        """
        text = _MessageText(message.text)
        run: Run = await retry_while_conflict()(self._send, tenant_id, session_id, calling_run, message, text)
        return run

    async def _send(
        self,
        tenant_id: str,
        session_id: str,
        calling_run: CallingRun | None,
        message: NewMessage,
        text: _MessageText,
    ) -> Run:
        sender_session_id = calling_run.session_id if calling_run else ""
        key = message_key(message.request_id, sender_session_id)
        async with self.database.pipelined(tenant_id) as connection:
            await sessions.read_session(connection, tenant_id, session_id, family_root=sender_session_id)
            tenant = require_ready(tenant_id, await tenants.enter_tenant(connection, tenant_id))
            to_store = await text.masked() if masks_secrets(tenant.settings) else text.plain
            await require_lease_of(connection, tenant_id, calling_run)
            session = await sessions.lock_session(connection, tenant_id, session_id)
            stored = await inbox.get_message_text(connection, tenant_id, session_id, key)
            if stored is not None and not await text.equals(stored):
                raise MeshError(
                    Reason.REQUEST_ID_REUSED,
                    f"request_id {message.request_id!r} was used before with another text; draw a new one",
                    facts={"request_id": message.request_id},
                )
            live = await runs.lock_live_run(connection, tenant_id, session_id)
            if stored is not None:
                return live or await _latest_run(connection, tenant_id, session_id)
            if session.state != SessionState.ACTIVE:
                raise MeshError(
                    Reason.SESSION_CLOSED,
                    f"session {session_id} is {session.state} and takes no more messages",
                    facts={"session_id": session_id, "state": session.state},
                )
            if message.run_id and (live is None or live.run_id != message.run_id):
                raise _not_live(await runs.find_run(connection, tenant_id, session_id, message.run_id))
            if live is not None:
                require_undecided(live)
                _require_reader(session, live, message)
            check_inbox(*await inbox.measure_inbox(connection, tenant_id, session_id), to_store)
            if live is None:
                limit = spawn_limits_of(tenant.settings).max_queued_run_count
                check_queue(await runs.count_waiting_runs(connection, tenant_id, limit=limit), limit)
            if message.is_urgent and live is not None and live.approval_id:
                live = await withdraw_and_queue(connection, tenant_id, session, live)
            interrupts = message.is_urgent and live is not None and _is_working(live)
            await inbox.insert_message(connection, tenant_id, session_id, key, to_store, is_urgent=interrupts)
            if live is not None:
                if interrupts:
                    await runs.notify_runner(connection, tenant_id, live)
                return live
            queued = await self.queuer.queue_run(connection, tenant_id, session_id, session.run_timeout)
        run = await queued.fetch()
        if run is None:
            raise RuntimeError("an active session that was locked got no run")
        return run


def _is_working(run: Run) -> bool:
    return run.state in HELD_RUN_STATES and run.interrupt_time is None


def _require_reader(session: Session, live: Run, message: NewMessage) -> None:
    """Refuse a message that an interrupted run would have to read.

    It reads nothing more. A session of mode SESSION gets a new run for the message, unless the
    message is for that run alone.
    """
    if live.interrupt_time is None:
        return
    if session.mode == SessionMode.RUN:
        raise MeshError(
            Reason.SESSION_CLOSED,
            f"session {session.session_id} closes with its run, which was interrupted",
            facts={"session_id": session.session_id, "run_id": live.run_id},
        )
    if message.run_id:
        raise MeshError(
            Reason.RUN_STATE,
            f"run {live.run_id} was interrupted; send the message without naming it",
            facts={"run_id": live.run_id, "state": live.state},
        )


def _not_live(run: Run) -> MeshError:
    return MeshError(
        Reason.RUN_STATE,
        f"run {run.run_id} has ended as {run.state}; send the message without naming it",
        facts={"run_id": run.run_id, "state": run.state},
    )


async def _latest_run(connection: Connection, tenant_id: str, session_id: str) -> Run:
    run = (await sessions.read_session(connection, tenant_id, session_id)).latest_run
    if run is None:
        raise RuntimeError("a session with a message has no run")
    return run
