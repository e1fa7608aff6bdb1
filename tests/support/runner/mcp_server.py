"""An MCP server that speaks the protocol by hand: `mcp_server.py`.

It imports the standard library only, so that its process starts within a tenth of the time that
one made with the SDK needs.
"""

import json
import os
import signal
import sys
import threading
import time
from typing import Any

CITY = {"city": {"type": "string"}}


def forecast(city: str, days: int = 1) -> str:
    return f"{days} fine day(s) in {city}"


def order_rain(city: str) -> str:
    note("ordered")
    return f"it rains in {city}"


def measure() -> str:
    return '{"celsius": 21.5}'


def environment() -> str:
    """Return the environment and the working directory."""
    return "\n".join(
        [f"cwd={os.getcwd()}", *(f"{name}={value}" for name, value in sorted(os.environ.items()))]
    )


def long_report(size: int) -> str:
    return "ä" * (size // 2)


def sleep(seconds: float) -> str:
    note("sleeping")
    time.sleep(seconds)
    return "awake"


def die() -> str:
    """Kill the server during the call."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "never said"


def pid() -> str:
    """Return the ids of the process and of a child that it starts."""
    return f"{os.getpid()} {started_child()}"


def stubborn() -> str:
    """Ignore SIGTERM and closed streams from now on, as the child does that it starts."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = started_child()
    # The thread keeps the process alive.
    threading.Thread(target=threading.Event().wait, args=(600,)).start()
    return f"{os.getpid()} {child}"


def started_child() -> int:
    """Start a child that handles SIGTERM as this process does."""
    child = os.fork()
    if child == 0:
        os.execv("/bin/sleep", ["sleep", "600"])
    return child


TOOLS = {
    forecast: {"properties": {**CITY, "days": {"type": "integer"}}, "required": ["city"]},
    order_rain: {"properties": CITY, "required": ["city"]},
    measure: {},
    environment: {},
    long_report: {"properties": {"size": {"type": "integer"}}},
    sleep: {"properties": {"seconds": {"type": "number"}}},
    die: {},
    pid: {},
    stubborn: {},
}
ANNOTATIONS = {forecast: {"readOnlyHint": True}, order_rain: {"destructiveHint": True}}
BY_NAME = {tool.__name__: tool for tool in TOOLS}


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a request; None for a method that the server does not know."""
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "weather", "version": "1"},
        }
    if method == "tools/list":
        tools = [
            {
                "name": tool.__name__,
                "inputSchema": {"type": "object", **schema},
                "annotations": ANNOTATIONS.get(tool, {}),
            }
            for tool, schema in TOOLS.items()
        ]
        return {"tools": tools}
    if method == "tools/call":
        text = BY_NAME[params["name"]](**params.get("arguments", {}))
        return {"content": [{"type": "text", "text": text}]}
    return None


def answer(request: dict[str, Any]) -> None:
    result = result_of(request["method"], request.get("params", {}))
    outcome = {"error": {"code": -32601, "message": "unknown"}} if result is None else {"result": result}
    send({"jsonrpc": "2.0", "id": request["id"], **outcome})


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def note(word: str) -> None:
    """Append a line to the file that the test reads."""
    if place := os.environ.get("NOTES"):
        with open(place, "a") as file:
            file.write(f"{word} {os.getpid()}\n")


if __name__ == "__main__":
    note("started")
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("params", {}).get("name") == "sleep":
            # Other calls are answered meanwhile.
            threading.Thread(target=answer, args=(message,), daemon=True).start()
        elif "id" in message:
            answer(message)
