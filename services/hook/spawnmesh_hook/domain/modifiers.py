"""How the answers of several plugins about a model, a prompt or a tool call become one."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh_core.json_text import MAX_DEPTH, may_have_too_many_nodes, parse_json

CONTEXT_MAX_BYTES = 64 * 1024
"""What the contract allows for one context, joined or not."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model a plugin wants asked first; empty where it leaves the choice to others."""

    plugin: str
    model: str


@dataclass(frozen=True, slots=True)
class PromptChange:
    """What a plugin makes of a prompt: empty texts and None leave it as it is."""

    plugin: str
    system_prompt: str = ""
    context: str = ""
    tools: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class MergedPrompt:
    """What all make of it together; `decided_by` in order of priority."""

    system_prompt: str
    context: str
    tools: tuple[str, ...] | None
    decided_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolCallAnswer:
    """One plugin's answer to a tool call: `block_reason`, or else `arguments_json`, or else as it is."""

    plugin: str
    arguments_json: str = ""
    block_reason: str = ""


@dataclass(frozen=True, slots=True)
class MergedToolCall:
    """What all say together; both texts empty where the call is as it was."""

    arguments_json: str
    block_reason: str
    decided_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """Where a plugin wants the end of a session told; empty where it leaves the choice to others."""

    plugin: str
    target: str


def merge_targets(choices: Sequence[TargetChoice]) -> TargetChoice:
    """The first that names a target, in order of priority; empty where none does."""
    return next((choice for choice in choices if choice.target), TargetChoice("", ""))


def merge_models(choices: Sequence[ModelChoice]) -> ModelChoice:
    """The first that names a model, in order of priority; empty where none does."""
    return next((choice for choice in choices if choice.model), ModelChoice("", ""))


def merge_prompts(changes: Sequence[PromptChange]) -> MergedPrompt:
    """The first system prompt; every context, as paragraphs cut at CONTEXT_MAX_BYTES; the tools that are on every list."""
    system = next((change for change in changes if change.system_prompt), None)
    context = "\n\n".join(change.context for change in changes if change.context)
    lists = [change.tools for change in changes if change.tools is not None]
    tools = None
    if lists:
        left = set(lists[0]).intersection(*lists[1:])
        tools = tuple(dict.fromkeys(name for name in lists[0] if name in left))
    decided_by = tuple(
        change.plugin for change in changes if change is system or change.context or change.tools is not None
    )
    return MergedPrompt(
        system.system_prompt if system else "",
        context.encode()[:CONTEXT_MAX_BYTES].decode(errors="ignore"),
        tools,
        decided_by,
    )


def merge_tool_call(answers: Sequence[ToolCallAnswer]) -> MergedToolCall:
    """The first block, whatever was said before it; else the arguments of the last that gave any."""
    for answer in answers:
        if answer.block_reason:
            return MergedToolCall("", answer.block_reason, (answer.plugin,))
    rewrites = [answer for answer in answers if answer.arguments_json]
    if not rewrites:
        return MergedToolCall("", "", ())
    return MergedToolCall(rewrites[-1].arguments_json, "", tuple(answer.plugin for answer in rewrites))


def is_object(text: str) -> bool:
    """Whether the text is a JSON object of a depth and size that every reader takes, as `parse_json` does."""
    try:
        if text.count("[") + text.count("{") > MAX_DEPTH or may_have_too_many_nodes(text):
            parse_json(text)
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
