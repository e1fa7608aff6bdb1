"""Sending a message into a session."""

import asyncio
from dataclasses import dataclass

from psycopg.rows import DictRow
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_session.domain import (
    Holder,
    RunState,
    SessionState,
    SpawnLimits,
    check_inbox,
    check_queue,
    limits_of,
    masks_secrets,
    message_key,
    storable,
)
from spawnmesh_session.operations.endings import Endings
from spawnmesh_session.operations.holder import require_holder
from spawnmesh_session.operations.masking import masked
from spawnmesh_session.store import inbox, runs, sessions, spawns, tenants

_PATIENCE_SECONDS = 2.0
_LOOK_AGAIN_SECONDS = 0.02
_MESSAGES_AT_ONCE = 100  # As for spawns: so far from its limit the queue need not be locked to count it.


@dataclass(slots=True)
class Sent:
    """A message's text, and what is kept of it where secrets are masked, made once when it is asked for."""

    plain: str
    _masked: str | None = None

    async def masked(self) -> str:
        """Without secrets."""
        if self._masked is None:
            self._masked = await masked(self.plain)
        return self._masked

    async def is_kept_as(self, known: str) -> bool:
        """Whether `known` is what was kept of it, whatever the tenant's settings said then."""
        return known == self.plain or known == await self.masked()


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of people and of parents."""

    database: Database
    endings: Endings

    async def send(self, tenant_id: str, session_id: str, holder: Holder | None, request_id: str, text: str) -> DictRow:
        """Puts the message into the inbox, once for the request_id; returns the run that will read it.

        Where a run calls, the `holder`, it is for its own family alone, and RUN_LEASE_LOST where it is not held any more.

        Where the tenant has secrets masked, none is kept of it. Waits while an answer is just being made final, which will not wait for the
        message; CONFLICT where that takes long.
        """
        loop, sent = asyncio.get_running_loop(), Sent(storable(text))
        give_up = loop.time() + _PATIENCE_SECONDS
        while True:
            try:
                return await self._send(tenant_id, session_id, holder, request_id, sent)
            except MeshError as error:
                if error.reason is not Reason.CONFLICT or loop.time() >= give_up:
                    raise
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def _send(
        self, tenant_id: str, session_id: str, holder: Holder | None, request_id: str, sent: Sent
    ) -> DictRow:
        sender_session_id = holder.session_id if holder else ""
        key = message_key(request_id, sender_session_id)
        async with self.database.transaction(tenant_id) as connection:
            await sessions.get(connection, tenant_id, session_id, visible_to=sender_session_id)
            tenant = await tenants.enter_ready(connection, tenant_id)
            text = await sent.masked() if masks_secrets(tenant["settings"]) else sent.plain
            await require_holder(connection, tenant_id, holder)
            session = await sessions.lock(connection, tenant_id, session_id)
            known = await inbox.text_of(connection, tenant_id, session_id, key)
            if known is not None and not await sent.is_kept_as(known):
                raise MeshError(
                    Reason.REQUEST_ID_REUSED,
                    f"request_id {request_id!r} was used before with another text; draw a new one",
                    facts={"request_id": request_id},
                )
            live = await runs.lock_live(connection, tenant_id, session_id)
            if known is not None:
                return live or await self._latest(connection, tenant_id, session_id)
            if session["state"] != SessionState.ACTIVE:
                raise MeshError(
                    Reason.SESSION_CLOSED,
                    f"session {session_id} is {session['state']} and takes no more messages",
                    facts={"session_id": session_id, "state": session["state"]},
                )
            if live is not None and live["state"] == RunState.FINALIZING and live["final_entry_id"]:
                raise MeshError(
                    Reason.CONFLICT,
                    f"run {live['run_id']} is just being ended with its answer; call again",
                    retry_after_seconds=1.0,
                    facts={"session_id": session_id, "run_id": live["run_id"]},
                )
            check_inbox(*await inbox.measure_sent(connection, tenant_id, session_id), text)
            if live is None:
                await _check_queue(connection, tenant_id, limits_of(tenant["settings"]))
            await inbox.insert(connection, tenant_id, session_id, key, text)
            return live or await runs.get(
                connection,
                tenant_id,
                await self.endings.queue_run(connection, tenant_id, session_id, session["run_timeout"]),
            )

    async def _latest(self, connection: Connection, tenant_id: str, session_id: str) -> DictRow:
        session = await sessions.get(connection, tenant_id, session_id)
        return await runs.get(connection, tenant_id, session["latest_run"]["run_id"])


async def _check_queue(connection: Connection, tenant_id: str, limits: SpawnLimits) -> None:
    """Raises RUN_QUEUE_FULL where no place is left for the run that reads the message."""
    limit = limits.max_queued_run_count
    check_queue(await spawns.count_waiting(connection, tenant_id, margin=_MESSAGES_AT_ONCE, limit=limit), limits)
