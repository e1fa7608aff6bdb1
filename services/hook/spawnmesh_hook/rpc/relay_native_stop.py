"""RelayNativeStop: decide about a stop event of a coding harness outside the mesh."""

from spawnmesh.hook.v1 import native_stop_pb2 as pb
from spawnmesh.hook.v1.event_pb2 import BeforeAgentFinalizeEvent
from spawnmesh_core.errors import invalid
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.errors import PluginFailed
from spawnmesh_hook.domain.native_stop import NativeStop, parse_stop, render_answer, run_id_of
from spawnmesh_hook.operations.time_budget import TimeBudget
from spawnmesh_hook.rpc.dependencies import Dependencies


async def relay_native_stop(
    request: pb.RelayNativeStopRequest, caller: Caller, deps: Dependencies, budget: TimeBudget
) -> pb.RelayNativeStopResponse:
    """Call the plugins for BEFORE_AGENT_FINALIZE and return the output for the harness.

    The output is empty for an event that is not a stop, and if a plugin fails: the harness stops,
    and the delivery log says why. Raises INVALID_REQUEST for a malformed event,
    DispatchInProgress, and what `CpuWorkers.run` raises.
    """
    try:
        stop = await deps.workers.run(caller.tenant_id, request.ByteSize(), parse_stop, request.event_json)
    except ValueError as error:
        raise invalid("event_json", str(error)) from None
    if stop is None:
        return pb.RelayNativeStopResponse()
    event = _finalize_event(pb.NativeHarness.Name(request.harness), stop)
    try:
        decision = await deps.finalize_gate.decide(
            caller.tenant_id, event, f"native:{request.request_id}", budget
        )
    except PluginFailed:
        return pb.RelayNativeStopResponse()
    return pb.RelayNativeStopResponse(
        output=render_answer(decision),
        revision_number=decision.revision_number,
        capped=bool(decision.capped_revisions),
    )


def _finalize_event(harness: str, stop: NativeStop) -> BeforeAgentFinalizeEvent:
    return BeforeAgentFinalizeEvent(
        session_id=stop.session_id,
        run_id=run_id_of(harness, stop),
        agent_id=stop.agent_id,
        draft_text=stop.last_message,
        draft_bytes=len(stop.last_message.encode()),
    )
