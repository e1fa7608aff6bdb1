"""What the transcript service did, as it does it."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from spawnmesh.transcript.v1 import activity_service_pb2 as pb
from spawnmesh.transcript.v1.activity_service_pb2_grpc import ActivityServiceStub
from spawnmesh_core.errors import MeshError

from spawnmesh_client.patience import Patience
from spawnmesh_client.token_peer import TokenPeer

ONLY_NEW = -1
FROM_START = 0

_PATIENCE_SECONDS = 60.0
_CALL_SECONDS = 3600.0


async def watch_activities(
    peer: TokenPeer, session_id: str = "", *, after_position: int = ONLY_NEW
) -> AsyncIterator[pb.Activity]:
    """Activities behind a position, and then each as it comes, of one session or of all in the tenant. Never ends by itself.

    Goes on from where it was when the service restarts. Raises MeshError: NOT_FOUND for a session without a transcript, or once that is deleted.
    """
    stub = ActivityServiceStub(peer.channel)
    patience = Patience(_PATIENCE_SECONDS)
    while True:
        request = pb.WatchActivitiesRequest(session_id=session_id, after_position=after_position)
        answers = peer.stream(stub.WatchActivities, request, timeout_seconds=_CALL_SECONDS)
        patience.calling()
        try:
            async with aclosing(answers):
                async for answer in answers:
                    patience.heard()
                    after_position = answer.position
                    for activity in answer.activities:
                        yield activity
        except MeshError as error:
            await patience.after(error)
