"""WatchActivities.

Streams the activities after a position, then new ones as they commit, each once and in commit
order, from any replica.
"""

from collections.abc import AsyncGenerator

from spawnmesh.transcript.v1 import activity_service_pb2 as pb
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.change_notifier import CHANNEL, activity_topic
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_key
from spawnmesh_transcript.store import activities as activity_store
from spawnmesh_transcript.store import snapshots
from spawnmesh_transcript.store import transcripts as transcript_store

NEWEST = -1
"""The `after_position` of a watcher that wants no past activities."""

_PAGE_ROWS = 200
_POLL_SECONDS = 5.0  # For changes whose notification was lost.


async def watch_activities(
    request: pb.WatchActivitiesRequest, caller: Caller, deps: Dependencies
) -> AsyncGenerator[pb.WatchActivitiesResponse, None]:
    """Send the activities after a position at once, even if there are none, and then each time
    there are more.

    Covers one session, or the tenant if the request names none. Raises NOT_FOUND as soon as the
    session has no transcript. Polls are limited, so that many watchers woken at once leave
    connections to others.
    """
    key = parse_key(request.session_id, caller)
    after_position = request.after_position
    with deps.listener.subscription(CHANNEL, activity_topic(key.tenant_id)) as changed:
        is_first = True
        while True:
            async with deps.poll_limit.hold(key.tenant_id):
                page = await _read_page(deps.database, key, after_position)
            after_position = page.position
            if page.activities or is_first:
                is_first = False
                yield page
            if len(page.activities) < _PAGE_ROWS:
                await changed.wait(_POLL_SECONDS)


async def _read_page(database: Database, key: Key, after_position: int) -> pb.WatchActivitiesResponse:
    async with database.transaction(key.tenant_id) as connection:
        await snapshots.begin_snapshot(connection)
        if key.session_id and await transcript_store.read_transcript(connection, key) is None:
            raise not_found("transcript", key.session_id)
        if after_position == NEWEST:
            position = await activity_store.read_newest_position(connection, key.tenant_id)
            return pb.WatchActivitiesResponse(position=position)
        recorded = await activity_store.list_activities(
            connection, key, after_position=after_position, row_count=_PAGE_ROWS
        )
    response = pb.WatchActivitiesResponse(position=after_position)
    for one in recorded:
        activity = response.activities.add()
        activity.ParseFromString(one.body)
        activity.position = response.position = one.position
        activity.session_id = one.session_id
        activity.create_time.FromDatetime(one.create_time)
    return response
