"""An MCP server made with the SDK, as a program: `mcp_server.py stdio`, or
`mcp_server.py http PORT`.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

server = MCPServer("weather", log_level="CRITICAL")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def forecast(city: str, days: int = 1) -> str:
    """Tells the weather."""
    return f"{days} fine day(s) in {city}"


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def order_rain(city: str) -> str:
    """Makes rain."""
    note("ordered")
    return f"it rains in {city}"


@server.tool()
def measure() -> dict[str, float]:
    """Gives numbers."""
    return {"celsius": 21.5}


@server.tool()
def picture() -> list[Image | str]:
    """Gives a picture."""
    return ["a cloud", Image(data=b"\x89PNG" * 10, format="png")]


@server.tool()
def fail() -> str:
    """Fails."""
    raise ToolError("no weather today")


@server.tool()
def environment() -> str:
    """Print the environment and the working directory."""
    return "\n".join(
        [f"cwd={Path.cwd()}", *(f"{name}={value}" for name, value in sorted(os.environ.items()))]
    )


@server.tool()
def long_report(size: int) -> str:
    """Gives a long text."""
    return "ä" * (size // 2)


@server.tool()
async def sleep(seconds: float) -> str:
    """Takes its time."""
    note("sleeping")
    await asyncio.sleep(seconds)
    return "awake"


@server.tool()
def die() -> str:
    """Kill the server during the call."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "never said"


@server.tool()
def pid() -> str:
    """Return the ids of the process and of a child that it starts."""
    child = subprocess.Popen(["sleep", "600"])
    return f"{os.getpid()} {child.pid}"


@server.tool()
def traced(context: Context) -> str:
    """Return the trace that the call belongs to."""
    request = context.request_context
    meta = request.meta or {}
    return str(dict(meta).get("traceparent", "none"))


@server.tool()
async def stubborn() -> str:
    """Ignore SIGTERM and closed streams from now on."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(  # noqa: ASYNC220 - a signal's handler is set where the loop is
        [
            sys.executable,
            "-c",
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)",
        ]
    )
    # The thread keeps the process alive.
    threading.Thread(target=threading.Event().wait, args=(600,)).start()
    return f"{os.getpid()} {child.pid}"


def note(word: str) -> None:
    """Append a line to the file that the test reads."""
    if place := os.environ.get("NOTES"):
        with Path(place).open("a") as file:
            file.write(f"{word} {os.getpid()}\n")


if __name__ == "__main__":
    note("started")
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[2]), json_response="--json" in sys.argv)
