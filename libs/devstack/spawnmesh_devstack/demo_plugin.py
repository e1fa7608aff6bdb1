"""The demo's plugin, a process of its own: `python -m spawnmesh_devstack.demo_plugin`, set up by `DEMO_PLUGIN_…` variables.

It lets every session be spawned, asks for a revision of the coordinator's first draft that does not say it was verified,
and writes down which child sessions it heard the end of.
"""

import structlog
from grpc.aio import ServicerContext
from pydantic_settings import SettingsConfigDict
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh.hook.v1.decision_pb2 import Allow, FinalizeDecision, Revise, SpawnDecision
from spawnmesh.hook.v1.event_pb2 import BeforeAgentFinalizeEvent
from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import (
    HookHandlerServiceServicer,
    add_HookHandlerServiceServicer_to_server,
)
from spawnmesh_runtime.process import run, start_process
from spawnmesh_runtime.server import build_server, run_until_stopped
from spawnmesh_runtime.settings import ProcessSettings, load_settings

from spawnmesh_devstack.scripted_agents import COORDINATOR, VERIFIED

NAME = "demo-plugin"
INSTRUCTION = (
    "Compare the picture's SHA-256 with that of the file you were given yourself, then repeat your answer with the line "
    f"`{VERIFIED}` if they agree."
)

log = structlog.get_logger()


class DemoPluginSettings(ProcessSettings):
    """What the plugin reads from its environment."""

    model_config = SettingsConfigDict(env_prefix="DEMO_PLUGIN_", frozen=True, extra="ignore")


def judge(event: BeforeAgentFinalizeEvent) -> FinalizeDecision:
    """A revise for an unverified first draft of the coordinator; no objection to anything else."""
    unverified = VERIFIED not in event.draft_text.splitlines()
    if event.agent_id == COORDINATOR and event.revision_count == 0 and unverified:
        return FinalizeDecision(revise=Revise(reason=INSTRUCTION))
    decision = FinalizeDecision()
    getattr(decision, "continue").SetInParent()  # a keyword of Python
    return decision


class DemoPlugin(HookHandlerServiceServicer):
    """Answers the hooks."""

    async def HandleBeforeSpawn(
        self,
        request: pb.HandleBeforeSpawnRequest,
        context: ServicerContext[pb.HandleBeforeSpawnRequest, pb.HandleBeforeSpawnResponse],
    ) -> pb.HandleBeforeSpawnResponse:
        """Allows it."""
        return pb.HandleBeforeSpawnResponse(decision=SpawnDecision(allow=Allow()))

    async def HandleBeforeAgentFinalize(
        self,
        request: pb.HandleBeforeAgentFinalizeRequest,
        context: ServicerContext[pb.HandleBeforeAgentFinalizeRequest, pb.HandleBeforeAgentFinalizeResponse],
    ) -> pb.HandleBeforeAgentFinalizeResponse:
        """Judges the draft."""
        return pb.HandleBeforeAgentFinalizeResponse(decision=judge(request.event))

    async def HandleSubagentEnded(
        self,
        request: pb.HandleSubagentEndedRequest,
        context: ServicerContext[pb.HandleSubagentEndedRequest, pb.HandleSubagentEndedResponse],
    ) -> pb.HandleSubagentEndedResponse:
        """Hears it."""
        log.info("subagent ended", session=request.event.session_id, outcome=request.event.outcome)
        return pb.HandleSubagentEndedResponse()


async def serve(settings: DemoPluginSettings) -> None:
    """Serves until SIGTERM or SIGINT."""
    async with start_process(NAME, settings) as process:
        server = build_server(process)
        add_HookHandlerServiceServicer_to_server(DemoPlugin(), server)
        await run_until_stopped(process, server)


if __name__ == "__main__":
    run(serve(load_settings(DemoPluginSettings)))
