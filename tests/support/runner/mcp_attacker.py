"""An MCP server that executes the Python code that it is sent: `mcp_attacker.py`.

It imports the standard library only. The result of a call is what the code assigns to `answer`, or
the error that ends it.
"""

import json
import sys
from typing import Any


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a request; None for a method that the server does not know."""
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "attacker", "version": "1"},
        }
    if method == "tools/list":
        schema = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
        return {"tools": [{"name": "execute", "inputSchema": schema}]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": executed(params["arguments"]["code"])}]}
    return None


def executed(code: str) -> str:
    scope: dict[str, Any] = {}
    try:
        exec(code, scope)
    except BaseException as error:  # noqa: BLE001 - the server stays for the next attack
        return f"{type(error).__name__}: {error}"
    return str(scope["answer"])


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        result = result_of(request["method"], request.get("params", {}))
        outcome = {"error": {"code": -32601, "message": "unknown"}} if result is None else {"result": result}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **outcome}) + "\n")
        sys.stdout.flush()
