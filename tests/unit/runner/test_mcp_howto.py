"""The guide about MCP servers agrees with what the runner reads."""

import re
from pathlib import Path

from spawnmesh_runner.clients.mcp.config import McpConfig, McpServer

from tests.support.docs.code_blocks import typed

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "mcp.md").read_text()
EXAMPLES = typed("docs/howto/mcp.md", "json")


def test_configurations_in_the_guide_are_valid() -> None:
    _, second = map(McpConfig.model_validate_json, EXAMPLES)
    assert second.servers["files"].tools == ("list", "read")
    assert second.servers["tracker"].tenants == ("acme",)
    assert second.servers["files"].tenants == ("*",)


def test_every_field_is_in_the_guide_with_its_default() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| `")]
    explained = {
        name: without.strip() for names, _, without in rows for name in re.findall(r"`([^`]+)`", names)
    }
    assert set(explained) == set(McpServer.model_fields)
    server = McpServer(command="a", tenants=("*",))
    limits = [name for name in McpServer.model_fields if name.startswith("max_")]
    for name in ("connect_timeout_seconds", "call_timeout_seconds", *limits):
        assert float(explained[name].replace(",", "")) == getattr(server, name)
    assert explained["trust_annotations"] == explained["network"] == "`false`"
