"""A program that speaks MCP by hand and misbehaves: `mcp_hostile.py TRICK`."""

import json
import sys
from typing import Any

PLAIN = {"type": "object", "properties": {}}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def doubling() -> dict[str, Any]:
    """Return a schema whose parts each contain the one before twice: inlined it exceeds any
    memory.
    """
    parts: dict[str, Any] = {"p0": {"type": "string"}}
    for number in range(1, 60):
        parts[f"p{number}"] = {"allOf": [{"$ref": f"#/$defs/p{number - 1}"}] * 2}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/p59"}}, "$defs": parts}


GOOD: dict[str, Any] = {
    "name": "good",
    "description": "Fine.\x1b[31m\u202e\u0000 Hidden.",
    "inputSchema": PLAIN,
}
UNUSABLE: list[dict[str, Any]] = [
    {"name": "good", "description": "The same name.", "inputSchema": PLAIN},
    {"name": "has space", "inputSchema": PLAIN},
    {"name": "new\nline", "inputSchema": PLAIN},
    {"name": "x" * 65, "inputSchema": PLAIN},
    {"name": "", "inputSchema": {"type": "object"}},
    {"name": "naïve", "inputSchema": PLAIN},
    {"name": "huge", "description": "é" * 5_000_000, "inputSchema": PLAIN},
    {"name": "no_schema", "inputSchema": {"type": "object", "properties": {"a": {"type": "nonsense"}}}},
    {"name": "deep", "inputSchema": deep(40)},
    {
        "name": "wide",
        "inputSchema": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(4000)}},
    },
    {"name": "doubling", "inputSchema": doubling()},
    {
        "name": "tree",
        "inputSchema": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": "#/definitions/node",
            "type": "object",
            "definitions": {
                "node": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "left": {"$ref": "#/definitions/node"}},
                    "required": ["name"],
                }
            },
        },
    },
    {
        "name": "elsewhere",
        "inputSchema": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema"}}},
    },
]
SLOW: dict[str, Any] = {
    "name": "slow",
    "inputSchema": {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}},
        "patternProperties": {"^(b+)+$": {}},
        "additionalProperties": False,
    },
}


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def answer(trick: str, request: dict[str, Any]) -> None:
    number, method = request.get("id"), request["method"]
    if method == "initialize":
        version = request["params"]["protocolVersion"]
        about = {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "h", "version": "1"},
        }
        send({"id": number, "result": about})
    elif method == "tools/list" and trick == "endless":
        send(
            {
                "id": number,
                "result": {"tools": [{"name": "one", "inputSchema": PLAIN}], "nextCursor": "again"},
            }
        )
    elif method == "tools/list" and trick == "malformed":
        send({"id": number, "result": {"tools": [{"name": "one", "inputSchema": {"type": "string"}}]}})
    elif method == "tools/list":
        unusable = UNUSABLE if trick == "unusable" else []
        send({"id": number, "result": {"tools": [GOOD, *unusable, SLOW]}})
    elif method == "tools/call" and trick == "garbage":
        send({"id": number, "result": "nonsense"})
    elif method == "tools/call" and trick == "shapeless":
        send({"id": number, "result": {"content": [{"type": "unheard-of"}]}})
    elif method == "tools/call" and trick == "asking":
        send({"id": 1, "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}})
        send({"id": 2, "method": "roots/list"})
        answers = [json.loads(sys.stdin.readline()) for _ in range(2)]
        codes = " ".join("error" if "error" in one else "result" for one in answers)
        send({"id": number, "result": {"content": [{"type": "text", "text": codes}]}})
    elif method == "tools/call" and trick == "flood":
        while True:
            sys.stdout.write("x" * 1_000_000)
    elif method == "tools/call" and trick == "newlines":
        while True:
            sys.stdout.write("\n" * 1_000_000)
    elif method == "tools/call" and trick == "lines":
        while True:
            sys.stdout.write("no message\r\n" * 1_000)
    elif method == "tools/call" and trick == "chatty":
        sys.stdout.write("no message\n" * 990)
        send({"id": number, "result": {"content": [{"type": "text", "text": "done"}]}})
    elif method == "tools/call":
        print("a banner that is no message")
        error = {"code": -32000, "message": "boom \x1b[31m" + "m" * 100_000}
        send({"id": number, "error": error})
    elif number is not None:
        send({"id": number, "error": {"code": -32601, "message": "unknown"}})


if __name__ == "__main__":
    for line in sys.stdin:
        answer(sys.argv[1], json.loads(line))
