"""Activities of the transcript service, as they happen."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from spawnmesh.transcript.v1 import activity_service_pb2 as pb
from spawnmesh.transcript.v1.activity_service_pb2_grpc import ActivityServiceStub
from spawnmesh_core.errors import MeshError

from spawnmesh_client.retry_policy import RetryPolicy
from spawnmesh_client.token_peer import TokenPeer

ONLY_NEW = -1
FROM_START = 0

_RETRY_SECONDS = 60.0
_CALL_SECONDS = 3600.0


async def watch_activities(
    peer: TokenPeer, session_id: str = "", *, after_position: int = ONLY_NEW
) -> AsyncIterator[pb.Activity]:
    """Yield the activities after a position, then each new one, of one session or of the tenant.

    Never end.

    Resume after a restart of the service. Raises MeshError NOT_FOUND for a session without a
    transcript, or once the transcript is deleted.
    """
    stub = ActivityServiceStub(peer.channel)
    retry = RetryPolicy(_RETRY_SECONDS)
    while True:
        request = pb.WatchActivitiesRequest(session_id=session_id, after_position=after_position)
        answers = peer.stream(stub.WatchActivities, request, timeout_seconds=_CALL_SECONDS)
        retry.begin_attempt()
        try:
            async with aclosing(answers):
                async for answer in answers:
                    retry.record_answer()
                    after_position = answer.position
                    for activity in answer.activities:
                        yield activity
        except MeshError as error:
            await retry.wait_before_next(error)
