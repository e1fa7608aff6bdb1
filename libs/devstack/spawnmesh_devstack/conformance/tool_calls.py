"""Tool-call blocks of any provider's shape in the form of the contract: the block as JSON, beside
its id and name.
"""

import json
from collections.abc import Mapping
from typing import Any

from spawnmesh.content.v1.message_pb2 import ToolCall

_NAMELESS = "unknown"


def tool_call(block: Mapping[str, Any], call_id: str) -> ToolCall:
    """Return the call. Its name is that of the block, or of the function inside of it; a service
    must not rely on it.
    """
    function = block.get("function")
    named = [
        block.get("name"),
        block.get("toolName"),
        function.get("name") if isinstance(function, dict) else None,
    ]
    name = next((name for name in named if isinstance(name, str) and name.strip()), _NAMELESS)
    return ToolCall(tool_call_id=wire_text(call_id), name=wire_text(name), block_json=json.dumps(block))


def wire_text(text: str) -> str:
    """Return the text with lone surrogates written as escapes: protobuf has no bytes for them, and
    no transcript rule looks at them.
    """
    return text.encode("utf-8", "backslashreplace").decode()
