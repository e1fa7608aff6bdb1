"""The conversation in a chat-completions request, as a scripted agent reads it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_ATTACHED_IN = re.compile(r"Attached files: \d+.* in `([^`]+)`")


@dataclass(frozen=True, slots=True)
class Said:
    """A user text. Notes and messages of the mesh come as user texts too."""

    text: str


@dataclass(frozen=True, slots=True)
class Result:
    """A tool call and its result: the JSON object in the first line, and the text behind it.

    `value` is empty if there is no such line; then the text is the complete result, as `raw` always
    is.
    """

    tool: str
    arguments: Mapping[str, Any]
    value: Mapping[str, Any]
    text: str = ""
    raw: str = ""

    @property
    def items(self) -> list[Mapping[str, Any]]:
        """The JSON objects of a result that has one in each line."""
        return [_object(line) for line in self.text.split("\n") if line]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The system prompt, the offered tools, and what happened, oldest first."""

    system_prompt: str
    tools: frozenset[str]
    events: tuple[Said | Result, ...]

    @property
    def attachments_directory(self) -> str | None:
        """The directory of the attached files in the mesh's note."""
        found = [match.group(1) for text in self.said() if (match := _ATTACHED_IN.search(text))]
        return found[-1] if found else None

    def said(self) -> list[str]:
        """All user texts, oldest first."""
        return [event.text for event in self.events if isinstance(event, Said)]

    def results(self, tool: str, **arguments: object) -> list[Result]:
        """Return the results of a tool, oldest first, only of calls with these arguments."""
        found = (event for event in self.events if isinstance(event, Result) and event.tool == tool)
        return [
            result
            for result in found
            if all(result.arguments.get(key) == arguments[key] for key in arguments)
        ]

    def since(self, phrase: str) -> "Conversation | None":
        """Return what happened after a user text with this phrase, or None if there is no such
        text.
        """
        for place, event in enumerate(self.events):
            if isinstance(event, Said) and phrase in event.text:
                return Conversation(self.system_prompt, self.tools, self.events[place + 1 :])
        return None


def read_conversation(request: Mapping[str, Any]) -> Conversation:
    """Parse the messages of a request. Raises ValueError, KeyError or TypeError if they are not a
    chat.
    """
    system: list[str] = []
    events: list[Said | Result] = []
    calls: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for message in request["messages"]:
        match message["role"]:
            case "system" | "developer":
                system.append(_text(message["content"]))
            case "user":
                events.append(Said(_text(message["content"])))
            case "assistant":
                for call in message.get("tool_calls") or ():
                    calls[call["id"]] = (call["function"]["name"], _object(call["function"]["arguments"]))
            case "tool":
                tool, arguments = calls[message["tool_call_id"]]
                text = _text(message["content"])
                head, _, rest = text.partition("\n")
                value = _object(head)
                events.append(Result(tool, arguments, value, rest if value else text, text))
            case role:
                raise ValueError(f"there is no role {role!r}")
    tools = frozenset(tool["function"]["name"] for tool in request.get("tools") or ())
    return Conversation("\n".join(system), tools, tuple(events))


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def _object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
