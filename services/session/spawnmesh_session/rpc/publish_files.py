"""PublishFiles. Publishes files of the run, which stay when it has ended."""

from spawnmesh.session.v1.output_pb2 import PublishFilesRequest, PublishFilesResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.runs import CallingRun
from spawnmesh_session.operations.callers import require_epoch
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_text
from spawnmesh_session.rpc.output_messages import render_output_set


async def publish_files(
    request: PublishFilesRequest, caller: Caller, deps: Dependencies
) -> PublishFilesResponse:
    """Publish the files of the calling run. A repeat with the request_id returns their set."""
    require_epoch(caller, request.epoch)
    published = await deps.publisher.publish(
        caller.tenant_id,
        CallingRun(caller.session_id, caller.run_id, request.epoch),
        parse_text("request_id", request.request_id),
        request.files,
        request.uploads,
    )
    return PublishFilesResponse(output_set=render_output_set(published))
