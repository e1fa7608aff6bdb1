"""The errors of the hook service: what a caller reads from them."""

from datetime import timedelta

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_hook.domain.call_failures import ANSWER_UNREADABLE, NO_CONNECTION
from spawnmesh_hook.domain.errors import (
    DispatchInProgress,
    EndpointNotAllowed,
    EndpointNotReached,
    GrantMissing,
    NameIsBundled,
    PluginFailed,
    UnknownTenant,
)
from spawnmesh_hook.domain.plugins import Grant, HookKind


@pytest.mark.parametrize(
    ("error", "reason", "facts", "retry_after_seconds"),
    [
        (EndpointNotAllowed("x"), Reason.ENDPOINT_NOT_ALLOWED, {}, None),
        (EndpointNotReached("x"), Reason.ENDPOINT_NOT_REACHED, {}, None),
        (
            GrantMissing("p", HookKind.LLM_INPUT, next(iter(Grant))),
            Reason.GRANT_MISSING,
            {"plugin": "p", "hook": "LLM_INPUT", "grant": next(iter(Grant)).value},
            None,
        ),
        (NameIsBundled("p"), Reason.ALREADY_EXISTS, {"plugin": "p"}, None),
        (
            PluginFailed("p", HookKind.BEFORE_SPAWN, NO_CONNECTION),
            Reason.PLUGIN_FAILED,
            {"plugin": "p", "hook": "BEFORE_SPAWN", "is_transient": "true"},
            1.0,
        ),
        (
            PluginFailed("p", HookKind.BEFORE_SPAWN, ANSWER_UNREADABLE),
            Reason.PLUGIN_FAILED,
            {"plugin": "p", "hook": "BEFORE_SPAWN", "is_transient": "false"},
            1.0,
        ),
        (
            PluginFailed("p", HookKind.BEFORE_SPAWN, NO_CONNECTION, exceeded=timedelta(minutes=2)),
            Reason.PLUGIN_FAILED,
            {"plugin": "p", "hook": "BEFORE_SPAWN", "is_transient": "false", "max_wait_seconds": "120"},
            None,
        ),
        (DispatchInProgress(), Reason.CONFLICT, {}, 1.0),
        (UnknownTenant("x"), Reason.UNKNOWN_TENANT, {}, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, MeshError) else None,
)
def test_error_has_its_reason_its_facts_and_when_to_call_again(
    error: MeshError, reason: Reason, facts: dict[str, str], retry_after_seconds: float | None
) -> None:
    assert error.reason is reason
    assert error.facts == facts
    assert error.retry_after_seconds == retry_after_seconds


@pytest.mark.parametrize("error", [EndpointNotAllowed, EndpointNotReached, UnknownTenant])
def test_error_tells_the_cause(error: type[MeshError]) -> None:
    assert "is not on the operator's list" in error("is not on the operator's list").message  # type: ignore[call-arg, arg-type]


def test_failed_plugin_is_named_with_its_hook_and_error() -> None:
    assert (
        "plugin p gave no valid answer to BEFORE_SPAWN: the call failed: no connection"
        in PluginFailed("p", HookKind.BEFORE_SPAWN, NO_CONNECTION).message
    )
