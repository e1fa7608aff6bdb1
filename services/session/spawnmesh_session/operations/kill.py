"""Ending a session from outside, with everything that descends from it."""

import asyncio
from dataclasses import dataclass

from psycopg.rows import DictRow
from spawnmesh.transcript.v1.transcript_service_pb2 import WriterClaim
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_session.domain import Ending, Holder, RunState, SessionState, SpawnFailure
from spawnmesh_session.operations.endings import Endings, lock_run
from spawnmesh_session.operations.holder import require_holder
from spawnmesh_session.operations.undo import SpawnUndo
from spawnmesh_session.peers import Transcripts
from spawnmesh_session.store import runs, sessions

_KILLED = Ending(state=RunState.KILLED, error_reason="KILLED", error_message="the session was killed")
_KILLED_WHILE_SPAWNING = SpawnFailure.at("kill", "the session was killed while it was being spawned")
_FENCES_AT_ONCE = 16
ENDED_TOGETHER = 200
"""So many sessions are ended in a transaction, which takes it a second or two."""


@dataclass(frozen=True, slots=True)
class EndedFamily:
    """A session and its descendants, parents first, ended in a transaction that is not committed yet; some not, where it `has_more`."""

    members: list[str]
    spawning: list[str]
    killed_run_count: int
    has_more: bool


@dataclass(frozen=True, slots=True)
class Kill:
    """Kills sessions."""

    database: Database
    endings: Endings
    undo: SpawnUndo
    transcripts: Transcripts

    async def run(self, tenant_id: str, session_id: str, holder: Holder | None) -> int:
        """Ends the live runs of the session and of all its descendants, and closes them; returns how many runs it ended.

        A large family is ended in pages, parents first, each in a transaction: cut off, what is ended stays so, and a repeat does what is left.
        Where a run calls, the `holder`, it is of its own family alone, and RUN_LEASE_LOST where it is not held any more. A session that is still
        being spawned fails to spawn, and what there is of it is undone. Afterwards the transcripts take no more from the runners that held the
        runs, those killed before included. Where transcript does not answer, that is what the caller hears, and a repeat does what is left.
        """
        visible_to = holder.session_id if holder else ""
        killed, spawning, has_more = 0, list[str](), True
        while has_more:
            async with self.database.transaction(tenant_id) as connection:
                await require_holder(connection, tenant_id, holder)
                family = await self.end_family(connection, tenant_id, session_id, visible_to, most=ENDED_TOGETHER)
                has_more = family.has_more
                held = [] if has_more else await runs.list_killed(connection, tenant_id, family.members)
            holder = None  # Its own run may be among those that are killed by now.
            killed += family.killed_run_count
            spawning += family.spawning
        for member in spawning:
            await self.undo.clean_up(tenant_id, member, _KILLED_WHILE_SPAWNING, settled=False)
        await self._fence(held)
        return killed

    async def end_family(
        self, connection: Connection, tenant_id: str, session_id: str, visible_to: str = "", *, most: int | None = None
    ) -> EndedFamily:
        """Ends all of the family that has not ended, all of it locked afterwards; or `most` of those that have not, parents first. What spawns
        have made is for the caller to undo."""
        session = await sessions.get(connection, tenant_id, session_id, visible_to=visible_to)
        if session["parent_session_id"]:  # It will be told, and parents are locked before their children.
            await sessions.lock(connection, tenant_id, session["parent_session_id"])
        family = await sessions.lock_family(connection, tenant_id, session_id)
        living = [row for row in family if row["state"] in (SessionState.PROVISIONING, SessionState.ACTIVE)]
        ending = living[:most]
        spawning = [row["session_id"] for row in ending if row["state"] == SessionState.PROVISIONING]
        for member in spawning:
            await self.undo.mark_failed(connection, tenant_id, member, _KILLED_WHILE_SPAWNING)
        active = [row["session_id"] for row in ending if row["state"] == SessionState.ACTIVE]
        killed = [await self._end(connection, tenant_id, member) for member in active]
        return EndedFamily(
            members=[row["session_id"] for row in family],
            spawning=spawning,
            killed_run_count=sum(killed),
            has_more=len(living) > len(ending),
        )

    async def _end(self, connection: Connection, tenant_id: str, session_id: str) -> bool:
        """Closes an active session; whether it had a live run."""
        live = await runs.lock_live(connection, tenant_id, session_id)
        if live is None:
            await self.endings.close(connection, tenant_id, await sessions.lock(connection, tenant_id, session_id))
            return False
        locked = await lock_run(connection, tenant_id, live["run_id"])
        await self.endings.end_run(connection, tenant_id, locked, _KILLED, closing=True)
        return True

    async def _fence(self, held: list[DictRow]) -> None:
        """Takes the transcripts away from the runners, by a claim that is higher than theirs, and is given up at once."""
        places = asyncio.Semaphore(_FENCES_AT_ONCE)

        async def fence(run: DictRow) -> None:
            claim = WriterClaim(run_id=run["run_id"], epoch=run["epoch"] + 1)
            async with places:
                try:
                    await self.transcripts.acquire(run["session_id"], claim)
                    await self.transcripts.release(run["session_id"], claim)
                except MeshError as error:
                    if not refused_with(error, Reason.WRITER_CLAIM_LOST, Reason.NOT_FOUND):
                        raise

        async with asyncio.TaskGroup() as fencing:
            for run in held:
                fencing.create_task(fence(run))
