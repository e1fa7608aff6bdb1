"""Field masks: which fields an update changes."""

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.hook.v1.event_pb2 import HOOK_KIND_BEFORE_SPAWN
from spawnmesh.hook.v1.hook_service_pb2 import Plugin
from spawnmesh.model_router.v1.routing_pb2 import RoutingPolicy
from spawnmesh.session.v1.tenant_pb2 import Tenant, TenantSettings
from spawnmesh_calls.field_masks import Path, apply_changes, changed_paths
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

_FIXED = frozenset(Tenant.DESCRIPTOR.fields_by_name) - {"display_name", "settings"}
_LEAVES: tuple[Path, ...] = (
    ("display_name",),
    ("settings", "max_spawn_depth"),
    ("settings", "retain_on_session_keep"),
    ("settings", "archive_after"),
    ("settings", "attachments", "max_file_count"),
    ("settings", "attachments", "retention"),
    ("settings", "routing", "max_requests_per_minute"),
)

_counts = st.integers(0, 3)
_durations = st.none() | st.builds(Duration, seconds=st.integers(1, 3))
_tenants = st.builds(
    Tenant,
    tenant_id=st.sampled_from(("a", "b")),
    etag=st.sampled_from(("", "e")),
    display_name=st.sampled_from(("", "x", "y")),
    settings=st.none()
    | st.builds(
        TenantSettings,
        max_spawn_depth=_counts,
        retain_on_session_keep=st.booleans(),
        archive_after=_durations,
        attachments=st.none() | st.builds(AttachmentLimits, max_file_count=_counts, retention=_durations),
        routing=st.none() | st.builds(RoutingPolicy, max_requests_per_minute=_counts),
    ),
)


def values_of(tenant: Tenant) -> dict[Path, object]:
    """Return the values of all leaves; None for a default."""
    fields = MessageToDict(tenant, preserving_proto_field_name=True)

    def value(path: Path) -> object:
        found: object = fields
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    return {path: value(path) for path in _LEAVES}


def updated(before: Tenant, given: Tenant, *paths: str) -> Tenant:
    after = Tenant()
    after.CopyFrom(before)
    apply_changes(changed_paths(FieldMask(paths=paths), given, _FIXED), given, after)
    return after


@given(before=_tenants, given=_tenants, named=st.sets(st.sampled_from(_LEAVES), min_size=1))
def test_named_fields_get_their_values_and_no_other_changes(
    before: Tenant, given: Tenant, named: set[Path]
) -> None:
    after = updated(before, given, *(".".join(path) for path in named))
    wanted = values_of(given)
    assert values_of(after) == {
        path: wanted[path] if path in named else value for path, value in values_of(before).items()
    }
    assert (after.tenant_id, after.etag) == (before.tenant_id, before.etag)


@given(before=_tenants, given=_tenants)
def test_an_empty_mask_changes_what_is_set(before: Tenant, given: Tenant) -> None:
    after, wanted = updated(before, given), values_of(given)
    assert values_of(after) == {
        path: value if wanted[path] is None else wanted[path] for path, value in values_of(before).items()
    }
    assert (after.tenant_id, after.etag) == (before.tenant_id, before.etag)


@given(before=_tenants, given=_tenants)
def test_a_star_replaces_all_but_the_fixed_fields(before: Tenant, given: Tenant) -> None:
    after = updated(before, given, "*")
    assert (after.display_name, after.settings) == (given.display_name, given.settings)
    assert (after.tenant_id, after.etag) == (before.tenant_id, before.etag)


@given(before=_tenants, given=_tenants, named=st.sets(st.sampled_from(_LEAVES), min_size=1))
def test_a_repeat_changes_nothing(before: Tenant, given: Tenant, named: set[Path]) -> None:
    paths = [".".join(path) for path in named]
    once = updated(before, given, *paths)
    assert updated(once, given, *paths) == once


@pytest.mark.parametrize(
    "path",
    [
        "",
        "nothing",
        "tenant_id",
        "etag",
        "settings.nothing",
        "display_name.x",
        "settings.archive_after.seconds",
        "settings.",
        "settings..max_spawn_depth",
        "deletion.stalled_by",
        "Settings",
        "settings.*",
        "*",
    ],
)
def test_a_path_that_leads_to_no_changeable_field_is_refused(path: str) -> None:
    with pytest.raises(MeshError) as caught:
        changed_paths(FieldMask(paths=["display_name", path]), Tenant(), _FIXED)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert [violation.field for violation in caught.value.violations] == ["update_mask.paths[1]"]


def test_a_list_is_replaced_as_a_whole() -> None:
    plugin = Plugin(name="a", hooks=[HOOK_KIND_BEFORE_SPAWN], priority=3)
    apply_changes((("hooks",), ("priority",)), Plugin(name="b"), plugin)
    assert plugin == Plugin(name="a")
