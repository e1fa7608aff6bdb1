"""The demo's plugin, a process of its own: `python -m spawnmesh_devstack.demo_plugin`, configured
by `DEMO_PLUGIN_…` variables.

It allows every spawn, requests a revision of the coordinator's first draft that does not say it was
verified, and records the child sessions whose end it received.
"""

import sys

import structlog
from pydantic_settings import SettingsConfigDict
from spawnmesh.hook.v1.decision_pb2 import FinalizeDecision, SpawnDecision
from spawnmesh.hook.v1.end_outcome_pb2 import EndOutcome
from spawnmesh.hook.v1.event_pb2 import BeforeAgentFinalizeEvent, BeforeSpawnEvent
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh_plugin import Handlers, allow, go_on, hook, revise
from spawnmesh_plugin.serving import serve
from spawnmesh_plugin.settings import PluginSettings
from spawnmesh_runtime.process import run_process
from spawnmesh_runtime.settings import load_settings

from spawnmesh_devstack.scripted_agents import COORDINATOR, VERIFIED

NAME = "demo-plugin"
INSTRUCTION = (
    "Compare the picture's SHA-256 with that of the file you were given yourself, then repeat your answer "
    "with the line "
    f"`{VERIFIED}` if they agree."
)

log = structlog.get_logger()


class DemoPluginSettings(PluginSettings):
    """The plugin's settings from the environment."""

    model_config = SettingsConfigDict(env_prefix="DEMO_PLUGIN_", frozen=True, extra="ignore")


@hook("before_spawn")
def let_spawn(event: BeforeSpawnEvent) -> SpawnDecision:
    """Allow the spawn."""
    return allow()


@hook("before_agent_finalize")
def judge(event: BeforeAgentFinalizeEvent) -> FinalizeDecision:
    """Request a revision of an unverified first draft of the coordinator; do not object to anything
    else.
    """
    unverified = VERIFIED not in event.draft_text.splitlines()
    if event.agent_id == COORDINATOR and event.revision_count == 0 and unverified:
        return revise(INSTRUCTION)
    return go_on()


@hook("subagent_ended")
def hear(event: ObservedEvent) -> None:
    """Record the event."""
    outcome = EndOutcome.Name(event.subagent_ended.outcome)
    log.info("subagent_ended", session=event.session_id, outcome=outcome)


if __name__ == "__main__":
    run_process(serve(Handlers(sys.modules[__name__]), load_settings(DemoPluginSettings), name=NAME))
