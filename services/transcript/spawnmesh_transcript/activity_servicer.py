"""ActivityService on the wire."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from spawnmesh.transcript.v1 import activity_service_pb2 as pb
from spawnmesh.transcript.v1 import activity_service_pb2_grpc as pb_grpc
from spawnmesh_runtime.caller import current_caller

from spawnmesh_transcript.parse import parse_key
from spawnmesh_transcript.watching import Watchers

Context = grpc.aio.ServicerContext[Any, Any]


class ActivityServicer(pb_grpc.ActivityServiceServicer):
    """Each RPC does what the contract says of it."""

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers

    async def WatchActivities(
        self, request: pb.WatchActivitiesRequest, context: Context
    ) -> AsyncIterator[pb.WatchActivitiesResponse]:
        key = parse_key(request.session_id, current_caller())
        watching = self._watchers.watch(key.tenant_id, key.session_id, after_position=request.after_position)
        async with aclosing(watching):
            async for page in watching:
                yield page
