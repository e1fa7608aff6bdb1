"""Normalize variants of OpenAI's chat format that compatible endpoints send."""

import json
from typing import Any


def flatten_delta(delta: dict[str, Any]) -> dict[str, Any]:
    """Return the delta with its content as one text, and with thinking and refusals in their own
    fields.

    Raises ValueError for a part of an unknown kind, and TypeError for a part whose text is no
    string.
    """
    content = delta.get("content")
    if not isinstance(content, list):
        return delta
    texts = {"text": "", "thinking": "", "refusal": ""}
    for part in content:
        kind = part.get("type")
        if kind not in texts:
            raise ValueError("a part of the answer is of a kind that has no text")
        texts[kind] += _thought(part) if kind == "thinking" else _text(part[kind])
    return {
        **delta,
        "content": texts["text"],
        "reasoning_content": texts["thinking"] or delta.get("reasoning_content"),
        "refusal": texts["refusal"] or delta.get("refusal"),
    }


def arguments_text(given: Any) -> str:
    """Return the arguments of a call as text. An object is serialized with sorted keys.

    Raises TypeError for another type, and ValueError for an object that is nested too deeply.
    """
    if isinstance(given, dict):
        try:
            return json.dumps(given, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        except RecursionError:
            raise ValueError("arguments nested too deeply") from None
    return _text(given or "")


def _thought(part: dict[str, Any]) -> str:
    """Return the thought, which is a text or a list of parts."""
    thought = part["thinking"]
    return "".join(_text(each["text"]) for each in thought) if isinstance(thought, list) else _text(thought)


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError("a value that should be a text is none")
    return given
