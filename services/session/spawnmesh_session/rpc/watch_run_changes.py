"""WatchRunChanges. Tells a runner that a run it holds was interrupted or killed."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh.session.v1.run_service_pb2 import WatchRunChangesRequest, WatchRunChangesResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_text
from spawnmesh_session.store.runs import change_payloads


async def watch_run_changes(
    request: WatchRunChangesRequest, caller: Caller, deps: Dependencies
) -> AsyncGenerator[WatchRunChangesResponse, None]:
    """Yield a response for each hint.

    A runner that serves certain tenants hears of theirs alone.
    """
    payloads = change_payloads(parse_text("runner_id", request.runner_id), caller.tenants)
    async with aclosing(deps.run_changes.hints(payloads)) as hints:
        async for _ in hints:
            yield WatchRunChangesResponse()
