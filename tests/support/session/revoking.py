"""Revoke tokens, and find out whether they are refused."""

from collections.abc import Awaitable, Callable
from typing import Any

import jwt
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1 import token_service_pb2 as pb
from spawnmesh.session.v1.token_service_pb2_grpc import TokenServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token

from tests.support.session.harness import Mesh

HOUR = 3600.0


def id_of(token: str) -> str:
    return str(jwt.decode(token, options={"verify_signature": False})["jti"])


async def revoke(mesh: Mesh, token: str, **fields: Any) -> pb.RevokeTokenResponse:
    """Revoke with the token of an operator."""
    with use_token(token):
        answer: pb.RevokeTokenResponse = await mesh.peer.unary(
            TokenServiceStub(mesh.peer.channel).RevokeToken,
            pb.RevokeTokenRequest(**fields),
            timeout_seconds=60,
        )
    return answer


async def listing(mesh: Mesh, token: str) -> Reason | None:
    """List sessions with the token; return the reason of the refusal."""
    try:
        with use_token(token):
            await mesh.peer.unary(
                mesh.sessions.ListSessions, session_pb.ListSessionsRequest(), timeout_seconds=60
            )
    except MeshError as error:
        return error.reason
    return None


def is_refused(mesh: Mesh, token: str) -> Callable[[], Awaitable[bool]]:
    async def refused() -> bool:
        return await listing(mesh, token) is Reason.TOKEN_REVOKED

    return refused
