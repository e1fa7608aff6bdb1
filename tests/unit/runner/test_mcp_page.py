"""The page about MCP servers agrees with what the runner reads."""

import re
from pathlib import Path

from spawnmesh_runner.mcp.config import McpConfig, McpServer

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "mcp.md").read_text()
EXAMPLES = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_configurations_on_the_page_are_ones_that_the_runner_takes() -> None:
    _, second = map(McpConfig.model_validate_json, EXAMPLES)
    assert second.servers["files"].tools == ("list", "read")
    assert second.servers["tracker"].tenants == ("acme",)


def test_every_field_is_explained_with_what_holds_without_it() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| `")]
    explained = {name: without.strip() for names, _, without in rows for name in re.findall(r"`([^`]+)`", names)}
    assert set(explained) == set(McpServer.model_fields)
    server = McpServer(command="a")
    for name in ("connect_timeout_seconds", "call_timeout_seconds", "max_result_bytes"):
        assert float(explained[name].replace(",", "")) == getattr(server, name)
    assert explained["trust_annotations"] == "`false`"
