"""What a registration has to satisfy, and what it leaves to be filled in."""

from datetime import timedelta

import pytest
from spawnmesh_hook.domain.plugins import (
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
        ((HookKind.SUBAGENT_ENDED,), FailurePolicy.OPEN),
        ((HookKind.SUBAGENT_ENDED, HookKind.BEFORE_SPAWN), FailurePolicy.CLOSED),
    ],
)
def test_gates_are_closed_and_observers_open(hooks: tuple[HookKind, ...], policy: FailurePolicy) -> None:
    assert default_failure_policy(hooks) is policy


def test_reviewing_drafts_needs_finalize_control() -> None:
    needed = (HookKind.BEFORE_AGENT_FINALIZE, Grant.FINALIZE_CONTROL)
    assert missing_grant(plugin((HookKind.BEFORE_AGENT_FINALIZE,))) == needed
    only_content = plugin((HookKind.BEFORE_AGENT_FINALIZE,), (Grant.CONVERSATION_ACCESS,))
    assert missing_grant(only_content) == needed
    assert missing_grant(plugin((HookKind.BEFORE_AGENT_FINALIZE,), (Grant.FINALIZE_CONTROL,))) is None


def test_other_hooks_need_no_grant() -> None:
    assert missing_grant(plugin((HookKind.BEFORE_SPAWN, HookKind.SUBAGENT_ENDED))) is None


def test_content_is_for_those_with_access() -> None:
    assert plugin((HookKind.BEFORE_SPAWN,), (Grant.CONVERSATION_ACCESS,)).sees_content
    assert not plugin((HookKind.BEFORE_SPAWN,), (Grant.FINALIZE_CONTROL,)).sees_content
