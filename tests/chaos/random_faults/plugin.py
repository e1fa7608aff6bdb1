"""The plugin of the load, a process of its own, configured by `CHAOS_PLUGIN_…` variables.

It allows every spawn and every tool call, and requests one revision of the first draft of every
fourth session.
"""

import sys
from hashlib import sha256

import structlog
from pydantic_settings import SettingsConfigDict
from spawnmesh.hook.v1.decision_pb2 import FinalizeDecision, SpawnDecision, ToolCallDecision
from spawnmesh.hook.v1.end_outcome_pb2 import EndOutcome
from spawnmesh.hook.v1.event_pb2 import BeforeAgentFinalizeEvent, BeforeSpawnEvent, BeforeToolCallEvent
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh_plugin import Handlers, allow, go_on, hook, proceed, revise
from spawnmesh_plugin.serving import serve
from spawnmesh_plugin.settings import PluginSettings
from spawnmesh_runtime.process import run_process
from spawnmesh_runtime.settings import load_settings

log = structlog.get_logger()


class ChaosPluginSettings(PluginSettings):
    """The plugin's settings from the environment."""

    model_config = SettingsConfigDict(env_prefix="CHAOS_PLUGIN_", frozen=True, extra="ignore")


@hook("before_spawn")
def let_spawn(event: BeforeSpawnEvent) -> SpawnDecision:
    """Allow the spawn."""
    return allow()


@hook("before_tool_call")
def let_call(event: BeforeToolCallEvent) -> ToolCallDecision:
    """Let the tool call proceed."""
    return proceed()


@hook("before_agent_finalize")
def judge(event: BeforeAgentFinalizeEvent) -> FinalizeDecision:
    """Request one revision in every fourth session."""
    if event.revision_count == 0 and sha256(event.session_id.encode()).digest()[0] % 4 == 0:
        return revise("Say it again, in the same words.")
    return go_on()


@hook("subagent_ended")
def hear(event: ObservedEvent) -> None:
    """Record the event."""
    log.info(
        "subagent_ended", session=event.session_id, outcome=EndOutcome.Name(event.subagent_ended.outcome)
    )


if __name__ == "__main__":
    run_process(
        serve(Handlers(sys.modules[__name__]), load_settings(ChaosPluginSettings), name="chaos-plugin")
    )
