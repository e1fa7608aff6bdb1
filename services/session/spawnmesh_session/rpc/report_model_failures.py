"""ReportModelFailures. Tells the watchers of the session which models failed."""

from spawnmesh.session.v1.model_failure_pb2 import (
    ReportModelFailuresRequest,
    ReportModelFailuresResponse,
)
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.model_failures import FailedModelCall
from spawnmesh_session.domain.runs import CallingRun
from spawnmesh_session.operations.callers import require_epoch
from spawnmesh_session.operations.model_failure_reports import report_failures
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_text


async def report_model_failures(
    request: ReportModelFailuresRequest, caller: Caller, deps: Dependencies
) -> ReportModelFailuresResponse:
    """Append an event for each failure that is not known. Raises RUN_LEASE_LOST."""
    require_epoch(caller, request.epoch)
    failures = [
        FailedModelCall(parse_text("model", one.model), one.reason, one.http_status)
        for one in request.failures
    ]
    calling = CallingRun(caller.session_id, caller.run_id, request.epoch)
    count = await report_failures(deps.database, caller.tenant_id, calling, request.first_number, failures)
    return ReportModelFailuresResponse(model_failure_count=count)
