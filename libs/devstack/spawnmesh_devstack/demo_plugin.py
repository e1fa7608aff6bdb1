"""The demo's plugin, a process of its own: `python -m spawnmesh_devstack.demo_plugin`, set up by `DEMO_PLUGIN_…` variables.

It lets every session be spawned, asks for a revision of the coordinator's first draft that does not say it was verified,
and writes down which child sessions it heard the end of.
"""

import sys

import structlog
from pydantic_settings import SettingsConfigDict
from spawnmesh.hook.v1.decision_pb2 import FinalizeDecision, SpawnDecision
from spawnmesh.hook.v1.event_pb2 import BeforeAgentFinalizeEvent, BeforeSpawnEvent
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh_client.hooks import Handlers, allow, go_on, hook, revise
from spawnmesh_client.hooks.serving import serve
from spawnmesh_client.settings import PluginSettings
from spawnmesh_runtime.process import run
from spawnmesh_runtime.settings import load_settings

from spawnmesh_devstack.scripted_agents import COORDINATOR, VERIFIED

NAME = "demo-plugin"
INSTRUCTION = (
    "Compare the picture's SHA-256 with that of the file you were given yourself, then repeat your answer with the line "
    f"`{VERIFIED}` if they agree."
)

log = structlog.get_logger()


class DemoPluginSettings(PluginSettings):
    """What the plugin reads from its environment."""

    model_config = SettingsConfigDict(env_prefix="DEMO_PLUGIN_", frozen=True, extra="ignore")


@hook("before_spawn")
def let_spawn(event: BeforeSpawnEvent) -> SpawnDecision:
    """Allows it."""
    return allow()


@hook("before_agent_finalize")
def judge(event: BeforeAgentFinalizeEvent) -> FinalizeDecision:
    """A revise for an unverified first draft of the coordinator; no objection to anything else."""
    unverified = VERIFIED not in event.draft_text.splitlines()
    if event.agent_id == COORDINATOR and event.revision_count == 0 and unverified:
        return revise(INSTRUCTION)
    return go_on()


@hook("subagent_ended")
def hear(event: ObservedEvent) -> None:
    """Writes it down."""
    log.info("subagent ended", session=event.session_id, outcome=event.subagent_ended.outcome)


if __name__ == "__main__":
    run(serve(Handlers(sys.modules[__name__]), load_settings(DemoPluginSettings), name=NAME))
