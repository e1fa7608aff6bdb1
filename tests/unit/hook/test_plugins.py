"""The rules for registrations, and their defaults."""

from datetime import timedelta

import pytest
from spawnmesh.hook.v1 import event_pb2, observed_pb2
from spawnmesh_hook.domain.plugins import (
    GATES,
    MODIFIERS,
    OBSERVERS,
    RUN_OBSERVERS,
    SESSION_OBSERVERS,
    TRANSCRIPT_OBSERVERS,
    FailurePolicy,
    Grant,
    HookKind,
    Plugin,
    default_failure_policy,
    missing_grant,
)


def plugin(hooks: tuple[HookKind, ...], grants: tuple[Grant, ...] = ()) -> Plugin:
    return Plugin("p", "grpc://host:1", hooks, 0, timedelta(seconds=15), FailurePolicy.OPEN, grants)


@pytest.mark.parametrize(
    ("hooks", "policy"),
    [
        ((HookKind.BEFORE_SPAWN,), FailurePolicy.CLOSED),
        ((HookKind.BEFORE_AGENT_FINALIZE,), FailurePolicy.CLOSED),
        ((HookKind.BEFORE_TOOL_CALL,), FailurePolicy.CLOSED),
        ((HookKind.BEFORE_COMPACTION,), FailurePolicy.CLOSED),
        (
            (HookKind.BEFORE_MODEL_RESOLVE, HookKind.BEFORE_PROMPT_BUILD, HookKind.DELIVERY_TARGET),
            FailurePolicy.OPEN,
        ),
        ((HookKind.SUBAGENT_ENDED,), FailurePolicy.OPEN),
        ((HookKind.AFTER_COMPACTION,), FailurePolicy.OPEN),
        ((HookKind.SUBAGENT_ENDED, HookKind.BEFORE_SPAWN), FailurePolicy.CLOSED),
    ],
)
def test_gates_are_closed_and_observers_open(hooks: tuple[HookKind, ...], policy: FailurePolicy) -> None:
    assert default_failure_policy(hooks) is policy


def test_the_finalize_hook_needs_finalize_control() -> None:
    needed = (HookKind.BEFORE_AGENT_FINALIZE, Grant.FINALIZE_CONTROL)
    assert missing_grant(plugin((HookKind.BEFORE_AGENT_FINALIZE,))) == needed
    only_content = plugin((HookKind.BEFORE_AGENT_FINALIZE,), (Grant.CONVERSATION_ACCESS,))
    assert missing_grant(only_content) == needed
    assert missing_grant(plugin((HookKind.BEFORE_AGENT_FINALIZE,), (Grant.FINALIZE_CONTROL,))) is None


def test_other_hooks_need_no_grant() -> None:
    needing = {HookKind.BEFORE_AGENT_FINALIZE, HookKind.BEFORE_PROMPT_BUILD}
    assert missing_grant(plugin(tuple(set(HookKind) - needing))) is None


def test_content_needs_conversation_access() -> None:
    assert plugin((HookKind.BEFORE_SPAWN,), (Grant.CONVERSATION_ACCESS,)).sees_content
    assert not plugin((HookKind.BEFORE_SPAWN,), (Grant.FINALIZE_CONTROL,)).sees_content


def test_instructions_need_prompt_injection() -> None:
    assert plugin((HookKind.BEFORE_COMPACTION,), (Grant.PROMPT_INJECTION,)).changes_prompts
    assert not plugin((HookKind.BEFORE_COMPACTION,), (Grant.CONVERSATION_ACCESS,)).changes_prompts


def test_each_hook_of_the_proto_is_a_gate_a_modifier_or_an_observer_of_one_publisher() -> None:
    assert {f"HOOK_KIND_{kind}" for kind in HookKind} == set(event_pb2.HookKind.keys()) - {
        "HOOK_KIND_UNSPECIFIED"
    }
    assert len(GATES) + len(MODIFIERS) + len(OBSERVERS) == len(HookKind)
    fields = observed_pb2.ObservedEvent.DESCRIPTOR.oneofs_by_name["event"].fields
    assert {HookKind(field.name.upper()) for field in fields} == OBSERVERS
    assert len(RUN_OBSERVERS) + len(SESSION_OBSERVERS) + len(TRANSCRIPT_OBSERVERS) == len(OBSERVERS)
