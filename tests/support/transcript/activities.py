"""Activities of a session."""

import asyncio
from contextlib import aclosing

from spawnmesh.transcript.v1 import activity_service_pb2 as pb
from spawnmesh.transcript.v1.activity_service_pb2_grpc import ActivityServiceStub
from spawnmesh_runtime.impersonation import use_token

from tests.support.transcript.fixtures import Session

_SECONDS = 60.0


async def recorded(session: Session, count: int) -> list[pb.Activity]:
    """Wait until the session has this number of activities, and return them."""
    request = pb.WatchActivitiesRequest(session_id=session.session_id)
    peer = session.service.peer
    found: list[pb.Activity] = []
    with use_token(session.client_token()):
        answers = peer.stream(
            ActivityServiceStub(peer.channel).WatchActivities, request, timeout_seconds=_SECONDS
        )
        async with aclosing(answers), asyncio.timeout(_SECONDS):
            async for answer in answers:
                found += answer.activities
                if len(found) >= count:
                    return found
    raise AssertionError("the watch ended")
