"""Shapes in which endpoints that speak OpenAI's format say what OpenAI says in text."""

import json
from typing import Any


def flat(delta: dict[str, Any]) -> dict[str, Any]:
    """The delta with its content as one text, and what its parts thought or refused where other endpoints have that.

    Raises ValueError for a part of another kind, TypeError for one whose text is none.
    """
    content = delta.get("content")
    if not isinstance(content, list):
        return delta
    said = {"text": "", "thinking": "", "refusal": ""}
    for part in content:
        kind = part.get("type")
        if kind not in said:
            raise ValueError("a part of the answer is of a kind that has no text")
        said[kind] += _thought(part) if kind == "thinking" else _text(part[kind])
    return {
        **delta,
        "content": said["text"],
        "reasoning_content": said["thinking"] or delta.get("reasoning_content"),
        "refusal": said["refusal"] or delta.get("refusal"),
    }


def arguments_text(given: Any) -> str:
    """The arguments of a call as text: an object always in the same words, whatever the order of its keys.

    Raises TypeError for what is neither, ValueError for an object that is nested too deeply.
    """
    if isinstance(given, dict):
        try:
            return json.dumps(given, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        except RecursionError:
            raise ValueError("arguments nested beyond reason") from None
    return _text(given or "")


def _thought(part: dict[str, Any]) -> str:
    """A text, or as parts again."""
    thought = part["thinking"]
    return "".join(_text(each["text"]) for each in thought) if isinstance(thought, list) else _text(thought)


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError("something else where there should be a text")
    return given
