"""SendMessage. Puts a message into the session's inbox."""

import asyncio
from dataclasses import dataclass

from spawnmesh.session.v1.session_service_pb2 import SendMessageRequest, SendMessageResponse
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection
from spawnmesh_runtime.caller import Caller
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_fixed

from spawnmesh_session.domain.inbox import check_inbox, message_key
from spawnmesh_session.domain.runs import CallingRun, Run, RunState, check_queue
from spawnmesh_session.domain.sessions import SessionState
from spawnmesh_session.domain.spawns import spawn_limits_of
from spawnmesh_session.domain.tenants import masks_secrets, require_ready
from spawnmesh_session.domain.text import without_nul
from spawnmesh_session.operations.caller_lease import require_lease_of
from spawnmesh_session.operations.callers import calling_run_of
from spawnmesh_session.operations.masking import mask_secrets
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_run
from spawnmesh_session.store import inbox, runs, sessions, tenants

_RETRY_SECONDS = 2.0
_PAUSE_SECONDS = 0.02


async def send_message(
    request: SendMessageRequest, caller: Caller, deps: Dependencies
) -> SendMessageResponse:
    """Put the message into the inbox, once for each request_id; return the run that will read it.

    Wait up to 2 s while a run is being ended with its answer, which this message cannot precede;
    then raise CONFLICT. If the tenant masks secrets, the stored text holds none. A calling run
    must hold its lease, and may send only within its family.
    """
    text, calling_run = _MessageText(without_nul(request.text)), calling_run_of(caller)
    attempts = AsyncRetrying(
        retry=retry_if_exception(_is_conflict),
        stop=stop_after_delay(_RETRY_SECONDS),
        wait=wait_fixed(_PAUSE_SECONDS),
        reraise=True,
        sleep=asyncio.sleep,
    )
    run: Run = await attempts(
        _send, deps, caller.tenant_id, request.session_id, calling_run, request.request_id, text
    )
    return SendMessageResponse(run=render_run(run))


def _is_conflict(error: BaseException) -> bool:
    return isinstance(error, MeshError) and error.reason is Reason.CONFLICT


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


async def _send(
    deps: Dependencies,
    tenant_id: str,
    session_id: str,
    calling_run: CallingRun | None,
    request_id: str,
    text: _MessageText,
) -> Run:
    sender_session_id = calling_run.session_id if calling_run else ""
    key = message_key(request_id, sender_session_id)
    async with deps.database.pipelined(tenant_id) as connection:
        await sessions.read_session(connection, tenant_id, session_id, family_root=sender_session_id)
        tenant = require_ready(tenant_id, await tenants.enter_tenant(connection, tenant_id))
        to_store = await text.masked() if masks_secrets(tenant.settings) else text.plain
        await require_lease_of(connection, tenant_id, calling_run)
        session = await sessions.lock_session(connection, tenant_id, session_id)
        stored = await inbox.get_message_text(connection, tenant_id, session_id, key)
        if stored is not None and not await text.equals(stored):
            raise MeshError(
                Reason.REQUEST_ID_REUSED,
                f"request_id {request_id!r} was used before with another text; draw a new one",
                facts={"request_id": request_id},
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
        if live is not None and live.state == RunState.FINALIZING and live.decided_entry_id:
            raise MeshError(
                Reason.CONFLICT,
                f"run {live.run_id} is just being ended with its answer; call again",
                retry_after_seconds=1.0,
                facts={"session_id": session_id, "run_id": live.run_id},
            )
        check_inbox(*await inbox.measure_inbox(connection, tenant_id, session_id), to_store)
        if live is None:
            limit = spawn_limits_of(tenant.settings).max_queued_run_count
            check_queue(await runs.count_waiting_runs(connection, tenant_id, limit=limit), limit)
        await inbox.insert_message(connection, tenant_id, session_id, key, to_store)
        if live is not None:
            return live
        queued = await deps.queuer.queue_run(connection, tenant_id, session_id, session.run_timeout)
    run = await queued.fetch()
    if run is None:
        raise RuntimeError("an active session that was locked got no run")
    return run


async def _latest_run(connection: Connection, tenant_id: str, session_id: str) -> Run:
    run = (await sessions.read_session(connection, tenant_id, session_id)).latest_run
    if run is None:
        raise RuntimeError("a session with a message has no run")
    return run
