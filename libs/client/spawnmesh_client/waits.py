"""The wait for the end of a run."""

from collections.abc import Awaitable, Callable

from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as rpc
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError

from spawnmesh_client.retry_policy import RetryPolicy
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.view_of import duration_of

OnSession = Callable[[session_pb2.Session], Awaitable[None] | None]
"""Is called with a session each time that it was read, and awaited if it is asynchronous."""

# A longer wait is split into several calls, so that no proxy takes it for dead.
_CALL_SECONDS = 60.0
_REPORTED_CALL_SECONDS = 5.0
_ANSWER_SECONDS = 10.0
_RETRY_SECONDS = 60.0


async def wait_session(
    peer: TokenPeer, session_id: str, timeout_seconds: float, on_session: OnSession | None = None
) -> rpc.WaitSessionResponse:
    """Wait until the newest run has ended or the time is over, over restarts of the service.

    Call `on_session`, if it is given, every few seconds and at the end.
    """
    stub = SessionServiceStub(peer.channel)
    longest = _CALL_SECONDS if on_session is None else _REPORTED_CALL_SECONDS
    give_up = monotonic_seconds() + timeout_seconds
    retry = RetryPolicy(min(_RETRY_SECONDS, timeout_seconds))
    while True:
        left = max(0.0, give_up - monotonic_seconds())
        part = min(left, longest)
        request = rpc.WaitSessionRequest(session_id=session_id, timeout=duration_of(part))
        retry.begin_attempt()
        try:
            answer = await peer.unary(stub.WaitSession, request, timeout_seconds=part + _ANSWER_SECONDS)
        except MeshError as error:
            await retry.wait_before_next(error)
            continue
        retry.record_answer()
        if on_session is not None:
            reporting = on_session(answer.session)
            if reporting is not None:
                await reporting
        if answer.done or part == left:
            return answer
