"""A watch of a session, and of the sessions below it: their messages in one stream."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping

from spawnmesh_core.errors import MeshError, invalid
from spawnmesh_core.status import Status

from spawnmesh_session.domain.sessions import TERMINAL_EVENT_KINDS, EventKind, SessionEvent
from spawnmesh_session.domain.watch_positions import MAX_MEMBERS, MemberPosition, WatchScope
from spawnmesh_session.operations.member_feed import MemberFeed, Message, Step
from spawnmesh_session.operations.member_watch import MemberWatch, WatchSource
from spawnmesh_session.operations.read_ahead import ReadAhead
from spawnmesh_session.store import sessions

_HELD_SECONDS = 30.0


class FamilyWatch:
    """Follows a session and, if the scope says so, each session whose spawn it meets.

    `positions` has the position behind the newest message for each session that has not ended. With
    them, another watch goes on behind it: a session that is not among them has ended, or will be
    met.
    """

    def __init__(
        self,
        source: WatchSource,
        scope: WatchScope,
        tenant_id: str,
        *,
        family_root: str = "",
        ends_at_newest: bool = False,
    ) -> None:
        self._source, self._scope, self._tenant_id = source, scope, tenant_id
        self._family_root, self._ends_at_newest = family_root, ends_at_newest
        self._followed: dict[str, ReadAhead[Step]] = {}
        self._positions: dict[str, MemberPosition] = {}
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        # Sessions whose next message is the spawn of a child for which there is no place yet.
        self._held: deque[str] = deque()

    @property
    def positions(self) -> Mapping[str, MemberPosition]:
        """The position of each session that has not ended."""
        return self._positions

    async def messages(
        self, positions: Mapping[str, MemberPosition]
    ) -> AsyncGenerator[tuple[str, Message], None]:
        """Yield each message behind the positions, with its session, until all have ended.

        Raise NOT_FOUND when the session is deleted; one below it has ended then. Raise
        INVALID_REQUEST if there are too many sessions to follow.
        """
        try:
            for session_id, position in positions.items():
                self._follow(session_id, position)
            await self._require_watched()
            while self._followed:
                session_id = await self._next_ready()
                message = await self._take(session_id)
                if message is not None:
                    yield session_id, message
        finally:
            await asyncio.gather(*(steps.close() for steps in self._followed.values()))

    async def _next_ready(self) -> str:
        """Return a session that has a message, or has ended.

        Raise INVALID_REQUEST if a child waits for a place, and no session has news any more.
        """
        try:
            async with asyncio.timeout(_HELD_SECONDS if self._held else None):
                return await self._ready.get()
        except TimeoutError:
            raise invalid(
                "with_descendants",
                f"needs a family with at most {MAX_MEMBERS} sessions that have not ended; watch the"
                " children one by one",
            ) from None

    async def _take(self, session_id: str) -> Message | None:
        """Return the next message of the session, and go on behind it.

        Return None at its end, and if it has to be held.
        """
        steps = self._followed[session_id]
        try:
            step = steps.next.result()
        except MeshError as error:
            if error.status is not Status.NOT_FOUND or session_id == self._scope.session_id:
                raise
            return await self._end_deleted(session_id)
        if step is None:
            await self._leave(session_id, has_ended=not self._ends_at_newest)
            return None
        message, position = step
        child_id = _spawned_by(message) if self._scope.with_descendants else ""
        if child_id and len(self._followed) >= MAX_MEMBERS:
            self._held.append(session_id)
            return None
        self._positions[session_id] = position
        if isinstance(message, SessionEvent) and message.kind in TERMINAL_EVENT_KINDS:
            # A child may announce its result later. A watch that resumes here must not send that.
            await self._leave(session_id, has_ended=True)
        else:
            self._await_next(session_id, steps)
        if child_id:
            self._follow(child_id, MemberPosition())
        return message

    async def _end_deleted(self, session_id: str) -> Message | None:
        """Return what takes the open draft of the deleted session back, if it has one."""
        await self._require_watched()
        retracted = next(MemberFeed(self._positions[session_id]).retract(), None)
        await self._leave(session_id, has_ended=True)
        return retracted[0] if retracted is not None else None

    async def _require_watched(self) -> None:
        """Raise NOT_FOUND if the watched session was deleted behind its end."""
        session_id = self._scope.session_id
        if session_id not in self._followed:
            database, tenant_id = self._source.database, self._tenant_id
            await sessions.get_session(database, tenant_id, session_id, family_root=self._family_root)

    async def _leave(self, session_id: str, *, has_ended: bool) -> None:
        """Stop following the session, and let one that is held go on in its place."""
        await self._followed.pop(session_id).close()
        if has_ended:
            del self._positions[session_id]
        if self._held:
            self._ready.put_nowait(self._held.popleft())

    def _follow(self, session_id: str, position: MemberPosition) -> None:
        if session_id in self._followed:  # By a cursor that a caller made.
            return
        watch = MemberWatch(
            self._source,
            self._tenant_id,
            session_id,
            position,
            self._scope.with_transcript,
            self._ends_at_newest,
            self._family_root,
        )
        self._positions[session_id] = position
        self._followed[session_id] = ReadAhead(watch.steps())
        self._await_next(session_id, self._followed[session_id])

    def _await_next(self, session_id: str, steps: ReadAhead[Step]) -> None:
        steps.begin().add_done_callback(lambda _: self._ready.put_nowait(session_id))


def _spawned_by(message: Message) -> str:
    """Return the child session of a CHILD_SPAWNED event; empty for other messages."""
    if isinstance(message, SessionEvent) and message.kind is EventKind.CHILD_SPAWNED:
        return message.child_session_id
    return ""
