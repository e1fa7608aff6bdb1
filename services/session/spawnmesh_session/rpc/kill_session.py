"""KillSession.

Kills the live run of the session and of every descendant, and closes these sessions, parents first.
"""

from spawnmesh.session.v1.session_service_pb2 import KillSessionRequest, KillSessionResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.operations.callers import calling_run_of
from spawnmesh_session.rpc.dependencies import Dependencies


async def kill_session(
    request: KillSessionRequest, caller: Caller, deps: Dependencies
) -> KillSessionResponse:
    """End the live runs of the session and of its descendants, and close them."""
    killed_count = await deps.killer.kill(caller.tenant_id, request.session_id, calling_run_of(caller))
    return KillSessionResponse(killed_run_count=killed_count)
