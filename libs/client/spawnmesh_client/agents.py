"""The agents of a tenant."""

from collections.abc import Sequence

from spawnmesh.content.v1.thinking_pb2 import ThinkingLevel
from spawnmesh.session.v1.approval_pb2 import ApprovalPolicy as PolicyMessage
from spawnmesh.session.v1.approval_pb2 import ExpiryPolicy
from spawnmesh.session.v1.tenant_pb2 import AgentProfile

from spawnmesh_client.approval_views import ApprovalPolicy
from spawnmesh_client.resource_views import Agent
from spawnmesh_client.view_of import number_of, view_of
from spawnmesh_client.wire import WireMesh


class Agents:
    """`mesh.agents`."""

    def __init__(self, wire: WireMesh) -> None:
        self._wire = wire

    async def put(self, agent: Agent) -> Agent:
        """Create an agent, or replace all of the one with its id.

        Runs that are claimed from now on use it. Raises Conflict ETAG_DIFFERS, with the current
        etag in its facts, if the agent has an etag and was changed since.
        """
        return view_of(Agent, await self._wire.put_agent(_message(agent)))

    async def update(self, agent: Agent, fields: Sequence[str] = ()) -> Agent:
        """Change these fields of an agent, such as `system_prompt`, to the values in `agent`.

        Without fields, change those that are not empty. Raises FailedPrecondition UNKNOWN_AGENT,
        InvalidRequest for a field that cannot be changed, and Conflict ETAG_DIFFERS as `put`.
        """
        return view_of(Agent, await self._wire.update_agent(_message(agent), fields))

    async def get(self, agent_id: str) -> Agent:
        """Return one agent. Raises FailedPrecondition UNKNOWN_AGENT."""
        return view_of(Agent, await self._wire.agent(agent_id))

    async def list(self) -> Sequence[Agent]:
        """Return all agents, by id."""
        return [view_of(Agent, agent) for agent in await self._wire.agents()]

    async def delete(self, agent_id: str, *, etag: str = "") -> None:
        """Delete an agent, if it exists. Runs that are claimed from now on fail.

        With an etag, delete this version alone. Raises Conflict ETAG_DIFFERS.
        """
        await self._wire.delete_agent(agent_id, etag=etag)


def _message(agent: Agent) -> AgentProfile:
    return AgentProfile(
        agent_id=agent.agent_id,
        system_prompt=agent.system_prompt,
        models=agent.models,
        tools=agent.tools,
        spawnable_agents=agent.spawnable_agents,
        max_turn_count=agent.max_turn_count,
        context_token_budget=agent.context_token_budget,
        thinking=ThinkingLevel.ValueType(number_of(agent.thinking or "", ThinkingLevel.DESCRIPTOR)),
        mcp_servers=agent.mcp_servers,
        etag=agent.etag,
        approval=None if agent.approval is None else _policy(agent.approval),
    )


def _policy(policy: ApprovalPolicy) -> PolicyMessage:
    on_expiry = number_of(policy.on_expiry or "", ExpiryPolicy.DESCRIPTOR)
    message = PolicyMessage(
        tools=policy.tools,
        destructive_mcp_tools=policy.destructive_mcp_tools,
        on_expiry=ExpiryPolicy.ValueType(on_expiry),
    )
    if policy.timeout is not None:
        message.timeout.FromTimedelta(policy.timeout)
    return message
