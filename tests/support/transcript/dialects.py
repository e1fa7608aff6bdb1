"""Small session files in the shape of each coding agent."""

import json
from base64 import b64encode
from typing import Any

PNG = bytes(range(200)) * 3
BASE64 = b64encode(PNG).decode()


def js(value: Any) -> str:
    """Return the value as JSON.stringify writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def file_of(lines: list[Any]) -> bytes:
    return "".join((line if isinstance(line, str) else js(line)) + "\n" for line in lines).encode()


def claude(
    kind: str,
    uuid: str,
    parent: str | None,
    content: Any,
    *,
    message: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return a line of Claude Code."""
    said = {"role": kind, "content": content, **(message or {})}
    return {
        "parentUuid": parent,
        "isSidechain": False,
        "sessionId": "5f0c",
        "version": "2.0.1",
        "type": kind,
        "message": said,
        "uuid": uuid,
        "timestamp": "2026-01-01T00:00:00.000Z",
        **more,
    }


def claude_call(uuid: str, parent: str, call_id: str, **more: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": call_id, "name": "Read", "input": {"file_path": "/a", "n": 1.50}}
    return claude("assistant", uuid, parent, [block], message={"model": "claude-x", "id": "msg_1"}, **more)


def claude_result(uuid: str, parent: str, call_id: str, content: Any, **more: Any) -> dict[str, Any]:
    block = {"tool_use_id": call_id, "type": "tool_result", "content": content}
    return claude("user", uuid, parent, [block], toolUseResult={"stdout": "kept"}, **more)


CLAUDE_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}
CLAUDE_OLD = [
    {"type": "file-history-snapshot", "messageId": "m", "snapshot": {"files": {}}},
    claude("user", "u1", None, "old task é"),
    claude("assistant", "a1", "u1", [{"type": "text", "text": "old answer"}], message={"model": "claude-x"}),
]
CLAUDE_SIDE = [
    claude("user", "s1", None, "side task", isSidechain=True),
    claude("assistant", "s2", "s1", [{"type": "text", "text": "side answer"}], isSidechain=True),
]
CLAUDE_COMPACTION = [
    {
        "parentUuid": None,
        "logicalParentUuid": "a1",
        "isSidechain": False,
        "type": "system",
        "subtype": "compact_boundary",
        "content": "Conversation compacted",
        "uuid": "b1",
        "compactMetadata": {"trigger": "auto", "preTokens": 9},
    },
    claude("user", "c1", "b1", "what was done", isCompactSummary=True, isVisibleInTranscriptOnly=True),
]
CLAUDE_NEW = [
    claude("user", "u2", "c1", [{"type": "text", "text": "look"}, CLAUDE_IMAGE]),
    claude(
        "assistant",
        "a2",
        "u2",
        [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}],
        message={"model": "claude-x", "id": "msg_1"},
    ),
    claude_call("a3", "a2", "t1"),
    claude_call("a4", "a3", "t2"),
    claude_result("r1", "a3", "t1", "first result"),
    claude_result("r2", "a4", "t2", [{"type": "text", "text": "second"}, CLAUDE_IMAGE], slug="x"),
    {"type": "queue-operation", "operation": "dequeue", "sessionId": "5f0c"},
    claude("assistant", "a5", "r1", [{"type": "text", "text": "done"}], message={"model": "claude-x"}),
]
CLAUDE = [*CLAUDE_OLD, *CLAUDE_SIDE, *CLAUDE_COMPACTION, *CLAUDE_NEW]


def codex(kind: str, **payload: Any) -> dict[str, Any]:
    """Return a line of Codex."""
    return {"timestamp": "2026-01-01T00:00:00.000Z", "type": kind, "payload": payload}


def codex_said(role: str, text: str) -> dict[str, Any]:
    block = {"type": "output_text" if role == "assistant" else "input_text", "text": text}
    return codex("response_item", type="message", role=role, content=[block])


CODEX_META = codex("session_meta", id="019a", cwd="/w", originator="codex_cli_rs", cli_version="0.60.0")
CODEX_OLD = [
    CODEX_META,
    codex_said("developer", "sandbox rules"),
    codex_said("user", "<environment_context>\n  <cwd>/w</cwd>\n</environment_context>"),
    codex_said("user", "old task é"),
    codex("event_msg", type="user_message", message="old task é"),
    codex_said("assistant", "old answer"),
]
CODEX_COMPACTION = [
    codex(
        "compacted",
        message="what was done",
        replacement_history=[
            codex_said("developer", "sandbox rules")["payload"],
            codex_said("user", "<environment_context>x</environment_context>")["payload"],
            codex_said("user", "old task é")["payload"],
            codex_said("user", "Summary: what was done")["payload"],
        ],
    )
]
CODEX_NEW = [
    codex("turn_context", cwd="/w", model="gpt-5"),
    codex(
        "response_item",
        type="message",
        role="user",
        content=[
            {"type": "input_text", "text": "look"},
            {"type": "input_image", "image_url": f"data:image/png;base64,{BASE64}"},
        ],
    ),
    codex(
        "response_item",
        type="reasoning",
        summary=[{"type": "summary_text", "text": "hm"}],
        content=None,
        encrypted_content="gAAA",
    ),
    codex("response_item", type="function_call", name="shell", arguments='{"command":["ls"]}', call_id="t1"),
    codex("response_item", type="custom_tool_call", name="apply_patch", input="*** Begin", call_id="t2"),
    codex("response_item", type="function_call_output", call_id="t1", output="first result"),
    codex("response_item", type="custom_tool_call_output", call_id="t2", output="second"),
    codex("event_msg", type="token_count", info=None),
    codex_said("assistant", "done"),
]
CODEX = [*CODEX_OLD, *CODEX_COMPACTION, *CODEX_NEW]
CODEX_BARE = [
    {"id": "019a", "timestamp": "2025-08-01T00:00:00.000Z", "instructions": None, "git": {"branch": "main"}},
    {"record_type": "state"},
    {"type": "message", "id": None, "role": "user", "content": [{"type": "input_text", "text": "task"}]},
    {"type": "function_call", "id": None, "name": "shell", "arguments": "{}", "call_id": "t1"},
    {"type": "function_call_output", "call_id": "t1", "output": "result"},
    {
        "type": "message",
        "id": None,
        "role": "assistant",
        "content": [{"type": "output_text", "text": "done"}],
    },
]


def pi(kind: str, number: int, **more: Any) -> dict[str, Any]:
    """Return a line of pi, version 3, in a file without branches."""
    parent = f"e{number - 1}" if number > 1 else None
    return {"type": kind, "id": f"e{number}", "parentId": parent, "timestamp": "2026-01-01T00:00:00Z", **more}


def pi_said(number: int, role: str, text: str, **more: Any) -> dict[str, Any]:
    return pi("message", number, message={"role": role, "content": [{"type": "text", "text": text}], **more})


PI_HEADER = {"type": "session", "version": 3, "id": "5f0c", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/w"}
PI_CALL = {"type": "toolCall", "id": "t1", "name": "read", "arguments": {"path": "a"}}
PI = [
    PI_HEADER,
    pi("model_change", 1, provider="anthropic", modelId="m"),
    pi_said(2, "user", "old task é"),
    pi_said(3, "assistant", "old answer", provider="anthropic", model="m"),
    pi_said(4, "user", "kept task"),
    pi("compaction", 5, summary="what was done", firstKeptEntryId="e4", tokensBefore=9),
    pi("message", 6, message={"role": "assistant", "content": [PI_CALL], "provider": "p", "model": "m"}),
    pi(
        "message",
        7,
        message={
            "role": "toolResult",
            "toolCallId": "t1",
            "toolName": "read",
            "content": [
                {"type": "text", "text": "first result"},
                {"type": "image", "mimeType": "image/png", "data": BASE64},
            ],
            "isError": False,
        },
    ),
    pi_said(8, "assistant", "done", provider="anthropic", model="m"),
]


def _first_version(line: dict[str, Any]) -> dict[str, Any]:
    """Return the line as version 1 wrote it."""
    kept = {name: value for name, value in line.items() if name not in ("id", "parentId")}
    if "firstKeptEntryId" in kept:
        kept["firstKeptEntryIndex"] = int(kept.pop("firstKeptEntryId")[1:])
    return kept


PI_V1 = [
    {"type": "session", "id": "5f0c", "timestamp": "2025-11-01T00:00:00Z", "cwd": "/w", "provider": "p"},
    *(_first_version(line) for line in PI[1:]),
]
OPENCLAW = [
    *PI,
    pi("custom", 9, customType="model-snapshot", data={"provider": "p", "modelId": "m"}),
    pi_said(10, "assistant", "delivered copy", provider="openclaw", model="delivery-mirror"),
    pi_said(11, "user", "thanks"),
]

FILES: dict[str, list[Any]] = {
    "CLAUDE_CODE": CLAUDE,
    "CODEX": CODEX,
    "CODEX_BARE": CODEX_BARE,
    "PI": PI,
    "PI_V1": PI_V1,
    "OPENCLAW": OPENCLAW,
}
