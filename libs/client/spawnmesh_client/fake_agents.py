"""The agents of a FakeMesh, with the versions and etags that a mesh gives them."""

import hashlib

from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh.session.v1.tenant_service_pb2 import UpdateAgentRequest
from spawnmesh_calls.field_masks import apply_changes, changed_paths
from spawnmesh_core.errors import FieldViolation, MeshError
from spawnmesh_core.reasons import Reason

DEFAULT_AGENT = "default"
_FIXED = frozenset({"agent_id", "version", "etag"})


class FakeAgents:
    """Agents by their ids. The agent `default` is always there."""

    def __init__(self) -> None:
        self._agents: dict[str, AgentProfile] = {}
        self.update(UpdateAgentRequest(agent=AgentProfile(agent_id=DEFAULT_AGENT), allow_missing=True))

    def update(self, request: UpdateAgentRequest) -> AgentProfile:
        """Change the masked fields, or create the agent. Raises ETAG_DIFFERS, UNKNOWN_AGENT and
        INVALID_REQUEST.
        """
        given = request.agent
        paths = changed_paths(request.update_mask, given, _FIXED)
        current = self._agents.get(given.agent_id)
        if current is None and (given.etag or not request.allow_missing):
            self.get(given.agent_id)
        written = AgentProfile()
        written.CopyFrom(given if current is None else current)
        if current is not None:
            apply_changes(paths, given, written)
            if _content(current) == _content(written):
                return current
            if given.etag:
                _check(given.etag, current, "agent.etag")
        written.version = current.version + 1 if current is not None else 1
        written.etag = hashlib.sha256(_content(written) + str(written.version).encode()).hexdigest()[:32]
        self._agents[written.agent_id] = written
        return written

    def get(self, agent_id: str) -> AgentProfile:
        """Return the agent. Raises UNKNOWN_AGENT."""
        if agent_id not in self._agents:
            raise MeshError(
                Reason.UNKNOWN_AGENT,
                f"this tenant has no agent {agent_id!r}; UpdateAgent with allow_missing creates one",
                facts={"agent_id": agent_id},
            )
        return self._agents[agent_id]

    def all(self) -> list[AgentProfile]:
        """Return every agent, by id."""
        return [agent for _, agent in sorted(self._agents.items())]

    def delete(self, agent_id: str, etag: str) -> None:
        """Delete the agent, if it exists. Raises ETAG_DIFFERS."""
        if etag and agent_id in self._agents:
            _check(etag, self._agents[agent_id], "etag")
        self._agents.pop(agent_id, None)


def _content(agent: AgentProfile) -> bytes:
    bare = AgentProfile()
    bare.CopyFrom(agent)
    bare.ClearField("version")
    bare.ClearField("etag")
    return bare.SerializeToString(deterministic=True)


def _check(etag: str, current: AgentProfile, field: str) -> None:
    if etag != current.etag:
        raise MeshError(
            Reason.ETAG_DIFFERS,
            f"agent {current.agent_id} has changed: it is at version {current.version} now; get it, apply"
            " the change to it, and call again with its etag",
            violations=(FieldViolation(field, "is the etag of another version"),),
            facts={"agent_id": current.agent_id, "etag": current.etag, "version": current.version},
        )
