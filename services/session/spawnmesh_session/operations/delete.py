"""Deleting sessions with all that they have."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from spawnmesh_core.errors import MeshError, name_of, refused_with
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.interceptors.deadline import remaining_seconds

from spawnmesh_session.operations.kill import EndedFamily, Kill
from spawnmesh_session.operations.undo import UNDO_RETRY
from spawnmesh_session.peers import AttachmentSets, Transcripts
from spawnmesh_session.store import ended, runs

_PAGE = 500  # A family of so many is deleted in one transaction, a larger one in several.
_FINISHED_TOGETHER = 64
_AT_ONCE = 8
_PATIENCE_SECONDS = 30.0  # Of a call without a deadline.
_FINISH_SHARE = 0.8  # Of what is left of a call's time: the answer is to be heard before its deadline.


@dataclass(frozen=True, slots=True)
class Deleted:
    """What one call deleted."""

    session_count: int
    killed_run_count: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes sessions: first for every caller; then what peers keep of them, as often as it takes.

    A row in the queue stays until peers have nothing left. What a spawn that was under way would make after that, they refuse: an id that was
    released or deleted there stays so.
    """

    database: Database
    kill: Kill
    sets: AttachmentSets
    transcripts: Transcripts

    async def run(self, tenant_id: str, session_id: str) -> Deleted:
        """The session and its descendants are gone; a deleted one answers the same, with nothing more to do.

        Cut off, a large family may be gone in part, from its youngest on: a repeat finds the session, and goes on.
        """
        gone: list[str] = []
        killed = 0
        while True:
            async with self.database.transaction(tenant_id) as connection:
                family = await self._end(connection, tenant_id, session_id)
                if family is None:
                    return Deleted(len(gone), killed)
                youngest_first = family.members[::-1]
                if not family.has_more:
                    gone += await self.mark(connection, tenant_id, youngest_first[:_PAGE])
            killed += family.killed_run_count
            if not family.has_more:
                break
        for start in range(_PAGE, len(youngest_first), _PAGE):  # All have ended: nobody is spawned among them any more.
            page = youngest_first[start : start + _PAGE]
            async with self.database.transaction(tenant_id) as connection:
                await ended.lock_members(connection, tenant_id, page)
                gone += await self.mark(connection, tenant_id, page)
        await self._finish_soon(tenant_id, gone)
        return Deleted(len(gone), killed)

    async def _end(self, connection: Connection, tenant_id: str, session_id: str) -> EndedFamily | None:
        """The family, of which a page is ended now; None where it is deleted."""
        try:
            return await self.kill.end_family(connection, tenant_id, session_id, most=_PAGE)
        except MeshError as error:
            if refused_with(error, Reason.NOT_FOUND) and await ended.find_deleted(connection, tenant_id, [session_id]):
                return None
            raise

    async def mark(self, connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> list[str]:
        """Deletes ended sessions for every caller, and puts what is left to do into the queue; returns which were deleted now."""
        gone = await ended.delete(connection, tenant_id, session_ids)
        await runs.delete_many_dispatch(connection, tenant_id, runs.SPAWN, gone)
        await runs.insert_deletions(connection, tenant_id, gone, UNDO_RETRY)
        return gone

    async def finish(self, tenant_id: str, session_id: str) -> None:
        """Removes what peers keep of a deleted session, and it need not be looked at again."""
        await self._finish_all(tenant_id, [session_id])

    async def _finish_all(self, tenant_id: str, session_ids: Sequence[str]) -> None:
        """As `finish`, of several at once. Raises what went wrong with one of them; the others are done with."""
        async with self.database.transaction(tenant_id) as connection:
            deleted = await ended.find_deleted(connection, tenant_id, session_ids)
        places = asyncio.Semaphore(_AT_ONCE)

        async def clear(session_id: str) -> None:
            async with places:
                if deleted[session_id]:
                    await self.sets.release(derived_id(IdKind.ATTACHMENT_SET, session_id))
                await self.transcripts.delete(session_id)

        cleared = [session_id for session_id in session_ids if session_id in deleted]
        results = await asyncio.gather(*(clear(session_id) for session_id in cleared), return_exceptions=True)
        failures = {one: result for one, result in zip(cleared, results, strict=True) if result is not None}
        done = [session_id for session_id in session_ids if session_id not in failures]
        async with self.database.transaction(tenant_id) as connection:
            await runs.delete_many_dispatch(connection, tenant_id, runs.DELETE, done)
        for failure in failures.values():
            raise failure

    async def _finish_soon(self, tenant_id: str, session_ids: Sequence[str]) -> None:
        """Removes what can be removed before the caller's deadline. Never raises: the rest stays in the queue."""
        remaining = remaining_seconds()
        loop = asyncio.get_running_loop()
        give_up = loop.time() + (_PATIENCE_SECONDS if remaining is None else remaining * _FINISH_SHARE)
        for start in range(0, len(session_ids), _FINISHED_TOGETHER):
            try:
                async with asyncio.timeout_at(give_up):
                    await self._finish_all(tenant_id, session_ids[start : start + _FINISHED_TOGETHER])
            except Exception as error:  # noqa: BLE001 - the rows in the queue make the sweep repeat it.
                log = structlog.get_logger().bind(tenant=tenant_id, session=session_ids[start])
                log.warning("deletion_postponed", error=name_of(error), left=len(session_ids) - start)
            if loop.time() >= give_up:
                return
