"""Merge the answers of several plugins about a model, prompt, tool call or delivery target."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh_core.json_text import MAX_DEPTH, may_have_too_many_nodes, parse_json

CONTEXT_MAX_BYTES = 64 * 1024
"""The bound of the proto for one context, also after joining."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model that a plugin wants to be called first; empty if the plugin does not choose."""

    plugin: str
    model: str


@dataclass(frozen=True, slots=True)
class PromptChange:
    """A plugin's change of a prompt. Empty texts and None change nothing."""

    plugin: str
    system_prompt: str = ""
    context: str = ""
    tools: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class MergedPrompt:
    """The merged change of a prompt. `decided_by` is in order of priority."""

    system_prompt: str
    context: str
    tools: tuple[str, ...] | None
    decided_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolCallAnswer:
    """A plugin's answer to a tool call: block it, or rewrite its arguments, or proceed.

    Both texts are empty if the call proceeds unchanged.
    """

    plugin: str
    arguments_json: str = ""
    block_reason: str = ""


@dataclass(frozen=True, slots=True)
class MergedToolCall:
    """The merged answer to a tool call. Both texts are empty if the call is unchanged."""

    arguments_json: str
    block_reason: str
    decided_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """The delivery target that a plugin chooses; empty if the plugin does not choose."""

    plugin: str
    target: str


def merge_targets(choices: Sequence[TargetChoice]) -> TargetChoice:
    """Return the first choice with a target, in order of priority, or an empty choice."""
    return next((choice for choice in choices if choice.target), TargetChoice("", ""))


def merge_models(choices: Sequence[ModelChoice]) -> ModelChoice:
    """Return the first choice with a model, in order of priority, or an empty choice."""
    return next((choice for choice in choices if choice.model), ModelChoice("", ""))


def merge_prompts(changes: Sequence[PromptChange]) -> MergedPrompt:
    """Merge the changes of a prompt.

    - The first system prompt wins.
    - All contexts are joined as paragraphs and cut at CONTEXT_MAX_BYTES.
    - A tool stays if it is on every list of tools.
    """
    system = next((change for change in changes if change.system_prompt), None)
    context = "\n\n".join(change.context for change in changes if change.context)
    lists = [change.tools for change in changes if change.tools is not None]
    tools = None
    if lists:
        common = set(lists[0]).intersection(*lists[1:])
        tools = tuple(dict.fromkeys(name for name in lists[0] if name in common))
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
    """Return the first block if there is one, else the last rewritten arguments."""
    for answer in answers:
        if answer.block_reason:
            return MergedToolCall("", answer.block_reason, (answer.plugin,))
    rewrites = [answer for answer in answers if answer.arguments_json]
    if not rewrites:
        return MergedToolCall("", "", ())
    return MergedToolCall(rewrites[-1].arguments_json, "", tuple(answer.plugin for answer in rewrites))


def is_object(text: str) -> bool:
    """Return whether the text is a JSON object within the bounds of `parse_json`."""
    try:
        if text.count("[") + text.count("{") > MAX_DEPTH or may_have_too_many_nodes(text):
            parse_json(text)
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
