"""The revocation of tokens."""

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.session.v1.token_service_pb2 import RevokeTokenRequest
from spawnmesh.session.v1.token_service_pb2_grpc import TokenServiceStub

from spawnmesh_client.wire import WireMesh


async def revoke_token(
    mesh: WireMesh, token_id: str, *, tenant_id: str = "", expire_time: datetime | None = None
) -> datetime:
    """Revoke the token with this id, which expires at `expire_time`; return when it is forgotten.

    The tenant is for operators of the mesh. Raises MeshError.
    """
    request = RevokeTokenRequest(token_id=token_id, tenant_id=tenant_id)
    if expire_time is not None:
        request.expire_time.CopyFrom(_timestamp(expire_time))
    session = mesh.service("session")
    answer = await session.unary(TokenServiceStub(session.channel).RevokeToken, request)
    return answer.expire_time.ToDatetime(UTC)


def _timestamp(time: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp
