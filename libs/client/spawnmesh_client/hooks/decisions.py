"""What a handler may answer, one function for each."""

import json
from collections.abc import Mapping, Sequence

from spawnmesh.hook.v1 import decision_pb2 as pb
from spawnmesh.hook.v1.compaction_pb2 import Compact, CompactionDecision, KeepWhole
from spawnmesh.hook.v1.delivery_target_pb2 import DeliveryTargetDecision


def allow() -> pb.SpawnDecision:
    """To `before_spawn`: yes. So does a handler that returns nothing."""
    return pb.SpawnDecision(allow=pb.Allow())


def deny(reason: str) -> pb.SpawnDecision:
    """To `before_spawn`: no, and the caller is told why."""
    return pb.SpawnDecision(deny=pb.Deny(reason=reason))


def go_on() -> pb.FinalizeDecision:
    """To `before_agent_finalize`: no objection. So does a handler that returns nothing."""
    decision = pb.FinalizeDecision()
    getattr(decision, "continue").SetInParent()  # a keyword of Python
    return decision


def revise(reason: str, *, idempotency_key: str = "", max_attempts: int = 1) -> pb.FinalizeDecision:
    """To `before_agent_finalize`: work on it again, as the reason says.

    With a key, the objection is granted `max_attempts` times in a run and is one no more afterwards.
    """
    attempts = max_attempts if idempotency_key else 0
    return pb.FinalizeDecision(revise=pb.Revise(reason=reason, idempotency_key=idempotency_key, max_attempts=attempts))


def finalize(reason: str = "") -> pb.FinalizeDecision:
    """To `before_agent_finalize`: final as it is; plugins of lower priority are not asked."""
    return pb.FinalizeDecision(finalize=pb.Finalize(reason=reason))


def use_model(model: str) -> pb.ModelDecision:
    """To `before_model_resolve`: ask this model first."""
    return pb.ModelDecision(model=model)


def change_prompt(
    *, system_prompt: str = "", context: str = "", tools: Sequence[str] | None = None
) -> pb.PromptDecision:
    """To `before_prompt_build`: another system prompt, something to read before the conversation, only these tools."""
    listed = None if tools is None else pb.ToolList(names=tools)
    return pb.PromptDecision(system_prompt=system_prompt, context=context, tools=listed)


def deliver_to(target: str) -> DeliveryTargetDecision:
    """To `delivery_target`: have it told there, by the observer of `subagent_ended` that delivers to such places."""
    return DeliveryTargetDecision(target=target)


def compact(instructions: str = "") -> CompactionDecision:
    """To `before_compaction`: it may be, and the summary keeps what the instructions say. A handler that returns nothing has none."""
    return CompactionDecision(compact=Compact(instructions=instructions))


def keep_whole(reason: str) -> CompactionDecision:
    """To `before_compaction`: not now, and whoever asked is told why; plugins of lower priority are not asked."""
    return CompactionDecision(keep_whole=KeepWhole(reason=reason))


def proceed() -> pb.ToolCallDecision:
    """To `before_tool_call`: as it is. So does a handler that returns nothing."""
    return pb.ToolCallDecision(proceed=pb.Proceed())


def rewrite(arguments: Mapping[str, object]) -> pb.ToolCallDecision:
    """To `before_tool_call`: with these arguments instead."""
    return pb.ToolCallDecision(rewrite=pb.Rewrite(arguments_json=json.dumps(arguments)))


def block(reason: str) -> pb.ToolCallDecision:
    """To `before_tool_call`: not at all, and the model is told why."""
    return pb.ToolCallDecision(block=pb.Block(reason=reason))
