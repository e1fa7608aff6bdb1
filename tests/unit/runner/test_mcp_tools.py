"""The tools of a server that are offered; the log names the others."""

from typing import Any

import structlog
from mcp_types import Tool
from spawnmesh_runner.clients.mcp.config import McpServer
from spawnmesh_runner.clients.mcp.result import truncate_with_note
from spawnmesh_runner.tools.calling.mcp_tools import offer_tools
from spawnmesh_runner.tools.calling.tool import RemoteTool

from tests.support.runner.mcp_hostile import GOOD, UNUSABLE


async def call(_tool: str, _arguments: dict[str, Any]) -> str:
    raise AssertionError("nobody calls it")


def offer(listed: list[dict[str, Any]], **options: Any) -> tuple[list[RemoteTool], list[Any]]:
    """Return the tools and the log events."""
    server = McpServer(command="a", tenants=("*",), **options)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("info")
    )  # Earlier tests may have configured it.
    with structlog.testing.capture_logs() as logged:
        tools = offer_tools(
            "h", server, [Tool.model_validate(one) for one in listed], call, truncate_with_note
        )
    return tools, logged


def named(name: str, **hints: bool) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, "annotations": hints}


def test_omitted_tools_are_logged_with_the_reason() -> None:
    tools, logged = offer([GOOD, *UNUSABLE])
    assert [tool.name.removeprefix("mcp__h__") for tool in tools] == [
        "good",
        "huge",
        "tree",
        "elsewhere",
    ]
    assert {event["event"] for event in logged} == {"mcp_tool_left_out"}
    left_out = {event["tool"]: event["why"] for event in logged}
    unfit = "its name is not one that providers take, 64 letters, digits, '_' and '-' in all"
    assert left_out == {
        "'good'": "another one has its name",
        "'has space'": unfit,
        r"'new\nline'": unfit,
        f"'{'x' * 65}'": unfit,
        "''": unfit,
        r"'na\xefve'": unfit,
        "'no_schema'": "its schema is not one",
        "'deep'": "its schema is too large, or too deep",
        "'wide'": "its schema is too large, or too deep",
        "'doubling'": "its schema is too large, or too deep",
    }


def test_a_missing_tool_of_the_operators_list_is_logged() -> None:
    tools, logged = offer([named("a"), named("b")], tools=("a", "c"))
    assert [tool.name for tool in tools] == ["mcp__h__a"]
    assert [(event["event"], event["tools"]) for event in logged] == [("mcp_tools_missing", ["c"])]


def test_annotations_count_only_for_trusted_servers() -> None:
    listed = [
        named("reads", readOnlyHint=True),
        named("repeats", idempotentHint=True),
        named("acts", readOnlyHint=False, idempotentHint=False),
        named("silent"),
    ]
    believed, _ = offer(listed, trust_annotations=True)
    assert [tool.idempotent for tool in believed] == [True, True, False, False]
    doubted, _ = offer(listed)
    assert not any(tool.idempotent for tool in doubted)


def test_a_tool_is_destructive_unless_a_trusted_server_says_that_it_is_not() -> None:
    listed = [
        named("reads", readOnlyHint=True),
        named("adds", destructiveHint=False),
        named("deletes", destructiveHint=True),
        named("repeats", idempotentHint=True),
        named("silent"),
    ]
    believed, _ = offer(listed, trust_annotations=True)
    assert [tool.is_destructive for tool in believed] == [False, False, True, True, True]
    doubted, _ = offer(listed)
    assert all(tool.is_destructive for tool in doubted)
