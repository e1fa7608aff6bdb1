"""ReportRunEvents. Tells the watchers of the session what happened to the run."""

from spawnmesh.session.v1 import run_event_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain import run_events
from spawnmesh_session.domain.run_events import RunEvent
from spawnmesh_session.domain.runs import CallingRun
from spawnmesh_session.operations.callers import require_epoch
from spawnmesh_session.operations.run_event_reports import report_events
from spawnmesh_session.rpc.dependencies import Dependencies


async def report_run_events(
    request: pb.ReportRunEventsRequest, caller: Caller, deps: Dependencies
) -> pb.ReportRunEventsResponse:
    """Append each event that is not known to the events of the session. Raises RUN_LEASE_LOST."""
    require_epoch(caller, request.epoch)
    reported = [_parse(event) for event in request.events]
    calling = CallingRun(caller.session_id, caller.run_id, request.epoch)
    count = await report_events(deps.database, caller.tenant_id, calling, request.first_number, reported)
    return pb.ReportRunEventsResponse(reported_event_count=count)


def _parse(event: pb.RunEvent) -> RunEvent:
    if event.HasField("model_failure"):
        failure = event.model_failure
        return run_events.model_failed(failure.model, failure.reason, failure.http_status)
    decision = event.hook_decision
    plugins = tuple(decision.plugins)
    match decision.WhichOneof("decision"):
        case "chosen_model":
            return run_events.model_chosen(plugins, decision.chosen_model.model)
        case "changed_prompt":
            changed = decision.changed_prompt
            return run_events.prompt_changed(
                plugins,
                system_prompt_replaced=changed.system_prompt_replaced,
                context_added=changed.context_added,
                removed_tool_count=changed.removed_tool_count,
            )
        case "blocked_call":
            return run_events.call_blocked(plugins, decision.blocked_call.tool_name)
        case "rewritten_call":
            return run_events.call_rewritten(plugins, decision.rewritten_call.tool_name)
        case _:
            return run_events.approval_required(plugins, decision.call_to_approve.tool_name)
