"""Tool-call blocks of any provider's shape as the contract carries them: the block as its JSON, beside its id and name."""

import json
from collections.abc import Mapping
from typing import Any

from spawnmesh.content.v1.message_pb2 import ToolCall

_NAMELESS = "unknown"


def tool_call(block: Mapping[str, Any], call_id: str) -> ToolCall:
    """The call. Its name is the block's, or that of the function it wraps; a service may not rely on it."""
    function = block.get("function")
    named = [block.get("name"), block.get("toolName"), function.get("name") if isinstance(function, dict) else None]
    name = next((name for name in named if isinstance(name, str) and name.strip()), _NAMELESS)
    return ToolCall(tool_call_id=wire_text(call_id), name=wire_text(name), block_json=json.dumps(block))


def wire_text(text: str) -> str:
    """The text, with lone surrogates spelled as escapes: no rule for transcripts looks at them, and protobuf has no bytes for them."""
    return text.encode("utf-8", "backslashreplace").decode()
