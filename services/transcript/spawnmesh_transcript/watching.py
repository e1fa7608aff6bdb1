"""Activities as they come."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from spawnmesh.transcript.v1 import activity_service_pb2 as pb
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.listener import Listener
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript import store
from spawnmesh_transcript.announcements import CHANNEL, activity_topic
from spawnmesh_transcript.store import Key

NEWEST = -1
"""The position of one who wants to know of nothing that is past."""

_PAGE_ROWS = 200
_LOOK_AGAIN_SECONDS = 5.0  # For what was never announced.

_SQL = load_statements("spawnmesh_transcript")


@dataclass(frozen=True, slots=True)
class Watchers:
    """Watches tenants. Looks are bounded, so that many who watch, woken at once, leave connections to all other calls."""

    database: Database
    listener: Listener
    looks: asyncio.Semaphore

    async def watch(
        self, tenant_id: str, session_id: str, *, after_position: int
    ) -> AsyncGenerator[pb.WatchActivitiesResponse, None]:
        """What there is behind the position, at once and also where it is nothing; then each time there is more.

        Of one session, or of all where it is empty. Raises NOT_FOUND as soon as the session has no transcript.
        """
        with self.listener.subscription(CHANNEL, activity_topic(tenant_id)) as changed:
            is_first = True
            while True:
                async with self.looks:
                    page = await self._look(Key(tenant_id, session_id), after_position)
                after_position = page.position
                if page.activities or is_first:
                    is_first = False
                    yield page
                if len(page.activities) < _PAGE_ROWS:
                    await changed.wait(_LOOK_AGAIN_SECONDS)

    async def _look(self, key: Key, after_position: int) -> pb.WatchActivitiesResponse:
        async with self.database.transaction(key.tenant_id) as connection:
            await store.begin_snapshot(connection)
            if key.session_id and await store.read_transcript(connection, key) is None:
                raise not_found("transcript", key.session_id)
            if after_position == NEWEST:
                return pb.WatchActivitiesResponse(position=await _newest_position(connection, key.tenant_id))
            return await _page(connection, key, after_position)


async def _newest_position(connection: Connection, tenant_id: str) -> int:
    row = await (await connection.execute(_SQL["newest_activity"], {"tenant_id": tenant_id})).fetchone()
    return row["position"] if row else 0


async def _page(connection: Connection, key: Key, after_position: int) -> pb.WatchActivitiesResponse:
    parameters = {
        "tenant_id": key.tenant_id,
        "session_id": key.session_id,
        "after_position": after_position,
        "row_count": _PAGE_ROWS,
    }
    statement = "list_session_activities" if key.session_id else "list_activities"
    response = pb.WatchActivitiesResponse(position=after_position)
    cursor = await connection.execute(_SQL[statement], parameters, binary=True)
    async for row in cursor:
        activity = response.activities.add()
        activity.ParseFromString(row["body"])
        activity.position = response.position = row["position"]
        activity.session_id = row["session_id"]
        activity.create_time.FromDatetime(row["create_time"])
    return response
