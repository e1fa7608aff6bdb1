"""Stop events of coding harnesses outside of the mesh, under the same rules as drafts of runs."""

from dataclasses import dataclass

from spawnmesh.hook.v1.event_pb2 import BeforeAgentFinalizeEvent
from spawnmesh_core.errors import invalid

from spawnmesh_hook.budget import Budget
from spawnmesh_hook.domain.decisions import Decision, FinalizeAnswer
from spawnmesh_hook.domain.native import parse_stop, run_of
from spawnmesh_hook.errors import PluginFailed
from spawnmesh_hook.finalize_gate import FinalizeGate

_SILENCE = Decision(FinalizeAnswer.CONTINUE, "", (), 0, False)


@dataclass(frozen=True, slots=True)
class NativeRelay:
    """Asks the gates for BEFORE_AGENT_FINALIZE."""

    drafts: FinalizeGate

    async def judge(self, tenant_id: str, harness: str, event_json: str, request_id: str, budget: Budget) -> Decision:
        """The decision; continue for an event that is no stop, and where a plugin fails: the harness is let stop, and the log says why.

        Raises INVALID_REQUEST for what is no event.
        """
        try:
            stop = parse_stop(event_json)
        except ValueError as error:
            raise invalid("event_json", str(error)) from None
        if stop is None:
            return _SILENCE
        event = BeforeAgentFinalizeEvent(
            session_id=stop.session_id,
            run_id=run_of(harness, stop),
            agent_id=stop.agent_id,
            draft_text=stop.last_message,
            draft_bytes=len(stop.last_message.encode()),
        )
        try:
            return await self.drafts.judge(tenant_id, event, f"native:{request_id}", budget)
        except PluginFailed:
            return _SILENCE
