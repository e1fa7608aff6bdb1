"""The agents of the demo and the plugin that reviews them."""

from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1 import event_pb2, hook_service_pb2
from spawnmesh.session.v1.approval_pb2 import ApprovalPolicy
from spawnmesh.session.v1.tenant_pb2 import AgentProfile

from spawnmesh_devstack.demo_plugin import NAME
from spawnmesh_devstack.scripted_agents import ANALYST, BRIEF_NAME, COORDINATOR, COUNTER, FIGURES_NAME

TASK = (
    "Report three figures of the attached files: the sum of the column `amount` of the table, the number "
    "of lines of the "
    "text, and the SHA-256 of the picture."
)

_READING = ["list_files", "read_file"]
_SPAWNING = ["sessions_spawn", "sessions_wait"]


def profiles(models: Sequence[str]) -> list[AgentProfile]:
    """Return the coordinator, which may spawn an analyst, which may spawn a counter. Each calls the
    models in this order.
    """
    return [
        AgentProfile(
            agent_id=COORDINATOR,
            system_prompt=(
                f"You are the {COORDINATOR}. List the attached files, then spawn one `{ANALYST}`: hand it "
                "every file by its "
                f"`path`, and with `content` a file {BRIEF_NAME} that says what is wanted. Wait for it, "
                "then answer with its "
                "figures, word for word. Where you are asked to verify, list your own files again and "
                "compare."
            ),
            models=models,
            tools=[*_READING, *_SPAWNING],
            spawnable_agents=[ANALYST],
        ),
        AgentProfile(
            agent_id=ANALYST,
            system_prompt=(
                f"You are the {ANALYST}. List the attached files, read {BRIEF_NAME}, the table and the "
                "picture yourself, and "
                f"spawn one `{COUNTER}` with the text, by its `path`. Wait for it, then answer in three "
                "lines: "
                "`sum of amount: N`, `lines: N`, `sha256 of NAME: HEX`."
            ),
            models=models,
            tools=[*_READING, *_SPAWNING],
            spawnable_agents=[COUNTER],
        ),
        AgentProfile(
            agent_id=COUNTER,
            system_prompt=(
                f"You are the {COUNTER}. Read the attached text and answer in one line: `lines: N`."
            ),
            models=models,
            tools=_READING,
        ),
    ]


def with_approval(agents: Sequence[AgentProfile]) -> list[AgentProfile]:
    """Return the agents; a person must approve what the analyst spawns."""
    policy = ApprovalPolicy(tools=["sessions_spawn"])
    for agent in agents:
        if agent.agent_id == ANALYST:
            agent.approval.CopyFrom(policy)
    return list(agents)


def with_published_figures(agents: Sequence[AgentProfile]) -> list[AgentProfile]:
    """Return the agents; the analyst publishes its figures, and the coordinator fetches them."""
    for agent in agents:
        if agent.agent_id == ANALYST:
            agent.tools.extend(["write_file", "publish_files"])
            agent.system_prompt += (
                f" Before you answer, write these three lines into the file `{FIGURES_NAME}`, and publish it."
            )
        elif agent.agent_id == COORDINATOR:
            agent.tools.append("fetch_files")
            agent.system_prompt += (
                f" The {ANALYST} publishes its figures as `{FIGURES_NAME}`: fetch the set that is named with"
                " its result, read the file, and take the figures from there."
            )
    return list(agents)


def plugin_at(port: int) -> hook_service_pb2.Plugin:
    """Return the registration of the demo's plugin: it gates spawns and drafts, and
    observes ends.
    """
    return hook_service_pb2.Plugin(
        name=NAME,
        endpoint=f"grpc://127.0.0.1:{port}",
        hooks=[
            event_pb2.HOOK_KIND_BEFORE_SPAWN,
            event_pb2.HOOK_KIND_BEFORE_AGENT_FINALIZE,
            event_pb2.HOOK_KIND_SUBAGENT_ENDED,
        ],
        timeout=Duration(seconds=5),
        grants=[hook_service_pb2.GRANT_CONVERSATION_ACCESS, hook_service_pb2.GRANT_FINALIZE_CONTROL],
    )
