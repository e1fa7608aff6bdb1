"""Tenants: which ones may be used, and what their settings demand."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_session.domain.spawns import SpawnLimits, spawn_limits_of
from spawnmesh_session.domain.tenants import (
    DeletedTenant,
    DeletionStep,
    Tenant,
    TenantDeletion,
    masks_secrets,
    require_ready,
    require_tenant,
    retains_kept_sessions,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TENANT = Tenant("acme", "Acme", {}, settings_version=1, ready=True, create_time=NOW, deletion=None)
DELETION = TenantDeletion("acme", DeletionStep.KILL, NOW, None, 0, 0, 0, 0, "", 1)
INCOMPLETE = replace(TENANT, ready=False)
BEING_DELETED = replace(TENANT, deletion=DELETION)
DELETED = DeletedTenant("acme", replace(DELETION, step=DeletionStep.DONE))


@pytest.mark.parametrize("tenant", [TENANT, INCOMPLETE, BEING_DELETED])
def test_tenant_with_a_row_exists(tenant: Tenant) -> None:
    assert require_tenant("acme", tenant) is tenant


@pytest.mark.parametrize("found", [None, DELETED])
def test_absent_and_deleted_tenants_are_unknown(found: DeletedTenant | None) -> None:
    with pytest.raises(MeshError) as caught:
        require_tenant("acme", found)
    assert caught.value.reason is Reason.UNKNOWN_TENANT
    assert caught.value.facts == {"tenant_id": "acme"}


def test_complete_tenant_is_ready() -> None:
    assert require_ready("acme", TENANT) is TENANT


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "has not been created"),
        (DELETED, "has not been created"),
        (INCOMPLETE, "repeat CreateTenant"),
        (BEING_DELETED, "is being deleted"),
        (replace(BEING_DELETED, ready=False), "is being deleted"),
    ],
)
def test_tenant_that_is_not_ready_is_refused_with_the_cause(
    found: Tenant | DeletedTenant | None, message: str
) -> None:
    with pytest.raises(MeshError) as caught:
        require_ready("acme", found)
    assert caught.value.reason is Reason.UNKNOWN_TENANT
    assert caught.value.facts == {"tenant_id": "acme"}
    assert message in caught.value.message


def test_every_limit_is_read_from_the_settings() -> None:
    settings = {
        "max_spawn_depth": 1,
        "max_live_child_count": 2,
        "max_queued_run_count": 3,
        "max_running_run_count": 4,
        "max_spawn_count": 6,
        "run_weight": 7,
    }
    assert spawn_limits_of(settings) == SpawnLimits(1, 2, 3, 4, 6, 7)


@pytest.mark.parametrize(
    ("settings", "masks"),
    [
        ({}, False),
        ({"transcripts": None}, False),
        ({"transcripts": {}}, False),
        ({"transcripts": {"mask_secrets": False}}, False),
        ({"transcripts": {"mask_secrets": True}}, True),
    ],
)
def test_secrets_are_masked_only_on_demand(settings: dict[str, object], masks: bool) -> None:
    assert masks_secrets(settings) is masks


@pytest.mark.parametrize(
    ("settings", "retains"),
    [({}, False), ({"retain_on_session_keep": False}, False), ({"retain_on_session_keep": True}, True)],
)
def test_files_of_kept_sessions_are_retained_only_on_demand(
    settings: dict[str, object], retains: bool
) -> None:
    assert retains_kept_sessions(settings) is retains
