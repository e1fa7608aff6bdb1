"""An MCP server made with the SDK. As a program it speaks on its standard streams."""

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError


def forecast(city: str, days: int = 1) -> str:
    """Tells the weather."""
    return f"{days} fine day(s) in {city}"


def measure() -> dict[str, float]:
    """Gives numbers."""
    return {"celsius": 21.5}


def picture() -> list[Image | str]:
    """Gives a picture."""
    return ["a cloud", Image(data=b"\x89PNG" * 10, format="png")]


def fail() -> str:
    """Fails."""
    raise ToolError("no weather today")


def traced(context: Context) -> str:
    """Return the trace that the call belongs to."""
    request = context.request_context
    meta = request.meta or {}
    return str(dict(meta).get("traceparent", "none"))


def make_server() -> MCPServer:
    """Make the server. It serves once."""
    server = MCPServer("weather", log_level="CRITICAL")
    for tool in (forecast, measure, picture, fail, traced):
        server.add_tool(tool)
    return server


if __name__ == "__main__":
    make_server().run("stdio")
