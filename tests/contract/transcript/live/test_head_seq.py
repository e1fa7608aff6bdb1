"""GetHeadSeq: the newest entry, for watches."""

from spawnmesh.transcript.v1 import live_service_pb2 as live_pb
from spawnmesh.transcript.v1.live_service_pb2_grpc import LiveServiceStub
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token

from tests.support.transcript.bodies import user
from tests.support.transcript.fixtures import Session, refused

SECONDS = 60.0


async def test_GetHeadSeq__is_that_of_the_newest_entry(session: Session) -> None:
    peer = session.service.peer
    method = LiveServiceStub(peer.channel).GetHeadSeq

    async def head_of(one: Session) -> int:
        request = live_pb.GetHeadSeqRequest(session_id=one.session_id)
        with use_token(one.service_token()):
            return (await peer.unary(method, request, timeout_seconds=SECONDS)).seq

    await session.append([user("one"), user("two")])
    assert await head_of(session) == 3
    with refused(Reason.NOT_FOUND):
        await head_of(session.sibling())
