"""WatchRunChanges. Tells a runner that a run it holds was interrupted or killed."""

import asyncio
from collections.abc import AsyncGenerator

from spawnmesh.session.v1.run_service_pb2 import WatchRunChangesRequest, WatchRunChangesResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_text
from spawnmesh_session.store.runs import CHANGE_CHANNEL, change_payloads

_ALIVE_SECONDS = 60.0
# Changes of this time are told together: a response brings a heartbeat of every run of the runner,
# and one tenant may interrupt its own run again and again.
_GATHER_SECONDS = 0.2


async def watch_run_changes(
    request: WatchRunChangesRequest, caller: Caller, deps: Dependencies
) -> AsyncGenerator[WatchRunChangesResponse, None]:
    """Yield at once, at each change, and now and then, so that a lost connection is noticed.

    A runner that serves certain tenants hears of theirs alone.
    """
    payloads = change_payloads(parse_text("runner_id", request.runner_id), caller.tenants)
    with deps.listener.subscription(CHANGE_CHANNEL, *payloads) as changed:
        while True:
            yield WatchRunChangesResponse()
            await asyncio.sleep(_GATHER_SECONDS)
            await changed.wait(_ALIVE_SECONDS)
