"""The kill of a session with all its descendants."""

import asyncio
from dataclasses import dataclass

from spawnmesh.transcript.v1.transcript_service_pb2 import WriterClaim
from spawnmesh_core.cancellation import run_all
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_session.clients.transcripts import Transcripts
from spawnmesh_session.domain.runs import CallingRun, RunOutcome, RunState
from spawnmesh_session.domain.sessions import LIVE_SESSION_STATES, SessionState
from spawnmesh_session.domain.spawns import SpawnFailure
from spawnmesh_session.operations.caller_lease import require_lease_of
from spawnmesh_session.operations.run_termination import RunTerminator
from spawnmesh_session.operations.session_closing import close_idle_session
from spawnmesh_session.operations.spawn_undo import SpawnUndo
from spawnmesh_session.store import runs, sessions
from spawnmesh_session.store.runs import KilledRun

_KILLED = RunOutcome(
    state=RunState.KILLED,
    error_reason=Reason.KILLED,
    error_message="the session was killed",
)
_KILLED_WHILE_SPAWNING = SpawnFailure.killed()
_CONCURRENT_FENCES = 16
KILL_PAGE = 200
"""Sessions that one transaction ends, which takes a second or two."""


@dataclass(frozen=True, slots=True)
class EndedFamily:
    """A session and its descendants, parents first, ended in an open transaction.

    If it `has_more`, some of them have not ended.
    """

    members: list[str]
    spawning: list[str]
    killed_run_count: int
    has_more: bool


@dataclass(frozen=True, slots=True)
class FamilyKiller:
    """Kills sessions with their descendants."""

    database: Database
    terminator: RunTerminator
    undo: SpawnUndo
    transcripts: Transcripts

    async def kill(self, tenant_id: str, session_id: str, calling_run: CallingRun | None) -> int:
        """End the live runs of the family and close its sessions; return the run count.

        - A large family is ended in pages, parents first, one transaction each. After an
          interruption, the ended sessions stay ended, and a repeat ends the rest.
        - A run may kill only sessions of its own family; raise RUN_LEASE_LOST if it is not held.
        - A session that is being spawned fails to spawn and is undone.
        - At the end the transcripts refuse the runners that held the runs, also of earlier kills.
          If the transcript service does not answer, raise its error; a repeat fences the rest.
        """
        family_root = calling_run.session_id if calling_run else ""
        killed_count, spawning, has_more = 0, list[str](), True
        killed: list[KilledRun] = []
        while has_more:
            async with self.database.pipelined(tenant_id) as connection:
                await require_lease_of(connection, tenant_id, calling_run)
                family = await self.end_family(
                    connection, tenant_id, session_id, family_root, limit=KILL_PAGE
                )
                has_more = family.has_more
                if not has_more:
                    killed = await runs.list_killed_runs(connection, tenant_id, family.members)
            calling_run = None  # The calling run may be among the killed ones by now.
            killed_count += family.killed_run_count
            spawning += family.spawning
        for member in spawning:
            await self.undo.clean_up(tenant_id, member, _KILLED_WHILE_SPAWNING, settled=False)
        await self._fence(killed)
        return killed_count

    async def end_family(
        self,
        connection: Connection,
        tenant_id: str,
        session_id: str,
        family_root: str = "",
        *,
        limit: int | None = None,
    ) -> EndedFamily:
        """Lock the whole family and end its live sessions, at most `limit` of them, parents first.

        The caller undoes what the spawns in progress have created.
        """
        session = await sessions.read_session(connection, tenant_id, session_id, family_root=family_root)
        # The parent is notified, and parents are locked before children.
        if session.parent_session_id:
            await sessions.lock_session(connection, tenant_id, session.parent_session_id)
        family = await sessions.lock_family(connection, tenant_id, session_id)
        live = [member for member in family if member.state in LIVE_SESSION_STATES]
        page = live[:limit]
        spawning = [member.session_id for member in page if member.state == SessionState.PROVISIONING]
        for member in spawning:
            await self.undo.mark_failed(connection, tenant_id, member, _KILLED_WHILE_SPAWNING)
        active = [member.session_id for member in page if member.state == SessionState.ACTIVE]
        killed = [await self._end_session(connection, tenant_id, member) for member in active]
        return EndedFamily(
            members=[member.session_id for member in family],
            spawning=spawning,
            killed_run_count=sum(killed),
            has_more=len(live) > len(page),
        )

    async def _end_session(self, connection: Connection, tenant_id: str, session_id: str) -> bool:
        """Close an active session; return whether it had a live run."""
        live = await runs.lock_live_run(connection, tenant_id, session_id)
        if live is None:
            session = await sessions.lock_session(connection, tenant_id, session_id)
            await close_idle_session(connection, tenant_id, session)
            return False
        locked = await runs.lock_run_with_sessions(connection, tenant_id, live.run_id)
        await self.terminator.terminate(connection, tenant_id, locked, _KILLED, closing=True)
        await runs.notify_runner(connection, tenant_id, live)
        return True

    async def _fence(self, killed: list[KilledRun]) -> None:
        """Fence the runners from the transcripts: acquire and release a claim above theirs."""
        limit = asyncio.Semaphore(_CONCURRENT_FENCES)

        async def fence(run: KilledRun) -> None:
            claim = WriterClaim(run_id=run.run_id, epoch=run.epoch + 1)
            async with limit:
                try:
                    await self.transcripts.acquire(run.session_id, claim)
                    await self.transcripts.release(run.session_id, claim)
                except MeshError as error:
                    if not refused_with(error, Reason.WRITER_CLAIM_LOST, Reason.NOT_FOUND):
                        raise

        await run_all(*map(fence, killed))
