"""Session files of OpenClaw: `~/.openclaw/agents/<agent>/sessions/<id>.jsonl`.

They are files of pi, version 3, with lines of OpenClaw in them. Some of these lines are copies of
what the gateway delivered, which no model reads.
"""

from spawnmesh_core.json_text import Object

from spawnmesh_transcript.domain.dialects.members import object_in, text_in

_PROVIDER = "openclaw"
_COPIES = ("delivery-mirror", "gateway-injected")
_CUSTOM_TYPES = ("openclaw", "model-snapshot")


def is_own_line(root: Object) -> bool:
    """Return whether only OpenClaw writes such a line."""
    message = object_in(root, "message")
    if message is not None and text_in(message, "provider") == _PROVIDER:
        return True
    return text_in(root, "customType").startswith(_CUSTOM_TYPES)


def is_copy(root: Object) -> bool:
    """Return whether the line is a copy of a message that was delivered."""
    message = object_in(root, "message")
    return (
        message is not None
        and text_in(message, "role") == "assistant"
        and text_in(message, "provider") == _PROVIDER
        and text_in(message, "model") in _COPIES
    )
