"""The repeat of a spawn's request_id: it gets the answer of the first call."""

import asyncio
from dataclasses import dataclass

from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.listener import Listener
from spawnmesh_runtime.interceptors.deadline import remaining_seconds

from spawnmesh_session.domain.sessions import Session, SessionState
from spawnmesh_session.domain.spawns import KnownSpawn, SpawnSpec
from spawnmesh_session.store import events, sessions, spawns

_MAX_WAIT_SECONDS = 30.0
# Subtracted from the time that a repeat waits, so that its response arrives before its deadline: a
# tenth of the time, but at least the first number of seconds and at most the second.
_ANSWER_SECONDS = (0.2, 1.0)
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class SpawnRepeat:
    """Waits for spawns that other calls began."""

    database: Database
    listener: Listener

    async def find(self, tenant_id: str, spec: SpawnSpec) -> KnownSpawn | None:
        """Return the spawn with this request_id; None if it has failed and gave the id back.

        Raise REQUEST_ID_REUSED if its payload differs, and NOT_FOUND if its session was deleted.
        """
        async with self.database.transaction(tenant_id) as connection:
            known = await spawns.find_spawn(connection, tenant_id, spec)
        if known is None:
            return None
        if known.payload_hash != spec.payload_hash:
            raise MeshError(
                Reason.REQUEST_ID_REUSED,
                f"request_id {spec.request_id!r} was used before with another payload; draw a new one",
                facts={"request_id": spec.request_id},
            )
        if known.deleted:
            raise not_found("session", known.session_id)
        return known

    async def answer(self, tenant_id: str, session_id: str) -> Session:
        """Wait for the end of the spawn of this session, and return or raise its answer."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + _wait_seconds()
        payload = events.payload_of(tenant_id, session_id)
        with self.listener.subscription(events.CHANNEL, payload) as changed:
            while True:
                known = await self._get(tenant_id, session_id)
                if known.failure is not None:
                    raise known.failure.as_error()
                if known.state != SessionState.PROVISIONING:
                    return await sessions.get_session(self.database, tenant_id, session_id)
                left = give_up - loop.time()
                if left <= 0:
                    raise MeshError(
                        Reason.SPAWN_IN_PROGRESS,
                        "another call is working on this request_id; repeat to hear its answer",
                        retry_after_seconds=1.0,
                        facts={"session_id": session_id},
                    )
                await changed.wait(min(left, _POLL_SECONDS))

    async def _get(self, tenant_id: str, session_id: str) -> KnownSpawn:
        async with self.database.transaction(tenant_id) as connection:
            known = await spawns.get_spawn(connection, tenant_id, session_id)
        if known is None or known.deleted:
            raise not_found("session", session_id)
        return known


def _wait_seconds() -> float:
    """Return how long a repeat may wait and still answer before its own deadline."""
    remaining = remaining_seconds()
    if remaining is None:
        return _MAX_WAIT_SECONDS
    shortest, longest = _ANSWER_SECONDS
    return min(_MAX_WAIT_SECONDS, remaining - max(shortest, min(longest, remaining / 10)))
