"""Agents: their ids, how many a tenant may have, and absent ones."""

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_session.domain.agents import (
    DEFAULT_AGENT,
    AgentLimits,
    agent_limits_of,
    check_agent_count,
    is_agent_id,
    require_agent,
)


@pytest.mark.parametrize("text", ["a", "0", "a-b_c", "a" * 63])
def test_well_formed_agent_id(text: str) -> None:
    assert is_agent_id(text) is True


@pytest.mark.parametrize("text", ["", "-a", "_a", "A", "a.b", "a b", "a\n", "a" * 64])
def test_malformed_agent_id(text: str) -> None:
    assert is_agent_id(text) is False


def test_tenant_may_have_a_limited_number_of_agents() -> None:
    limits = agent_limits_of({})
    check_agent_count(999, limits)
    with pytest.raises(MeshError) as caught:
        check_agent_count(1000, limits)
    assert caught.value.reason is Reason.AGENT_COUNT_EXCEEDED
    assert caught.value.facts == {"limit": "1000", "agents": "1000"}


def test_limits_of_a_tenants_settings() -> None:
    assert agent_limits_of({"max_agent_count": 2, "max_mcp_server_count": 0}) == AgentLimits(2, 8)


def test_absent_agent_is_unknown() -> None:
    assert require_agent("default", DEFAULT_AGENT) is DEFAULT_AGENT
    with pytest.raises(MeshError) as caught:
        require_agent("writer", None)
    assert caught.value.reason is Reason.UNKNOWN_AGENT
    assert caught.value.facts == {"agent_id": "writer"}
