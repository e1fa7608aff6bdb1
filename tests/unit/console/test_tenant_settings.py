"""The settings of a tenant in words: all of them, and what holds without a value."""

from datetime import timedelta

import pytest
from spawnmesh.model_router.v1.routing_pb2 import BLIND_MODEL_POLICY_STRIP, BlindModelPolicy
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.tenancy.v1.call_limits_pb2 import CallLimits
from spawnmesh_console.clients.tenants import setting_values
from spawnmesh_console.domain.tenant_settings import (
    CALL_CLASSES,
    SettingValue,
    ShownSetting,
    call_limit_rows,
    described_paths,
    setting_groups,
)

DEFAULTS = setting_values(TenantSettings())


def shown(values: dict[str, SettingValue]) -> dict[str, ShownSetting]:
    """Return all settings by their paths."""
    groups = [one for group in setting_groups(values) for one in group.settings]
    limits = [one for _, row in call_limit_rows(values) for one in row]
    return {one.path: one for one in (*groups, *limits)}


def text_of(settings: TenantSettings, path: str) -> tuple[str, bool]:
    """Return the text of a setting, and whether it is the default."""
    one = shown(setting_values(settings))[path]
    return one.text, one.is_default


def test_every_field_of_the_contract_has_words() -> None:
    assert DEFAULTS.keys() == described_paths()
    assert tuple(field.name for field in CallLimits.DESCRIPTOR.fields) == CALL_CLASSES


def test_without_values_every_setting_is_a_default() -> None:
    settings = shown(DEFAULTS)
    assert settings.keys() == DEFAULTS.keys()
    assert [one for one in settings.values() if not one.is_default or not one.text] == []


def test_a_field_that_is_not_known_here_is_shown_by_its_path() -> None:
    groups = setting_groups({**DEFAULTS, "max_new_count": 7, "new.flag": False})
    assert groups[-1].title == "Others"
    assert [(one.name, one.text, one.is_default) for one in groups[-1].settings] == [
        ("max_new_count", "7", False),
        ("new.flag", "False", True),
    ]
    assert "Others" not in [one.title for one in setting_groups(DEFAULTS)]


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("max_spawn_depth", 64, "64"),
        ("max_queued_run_count", 1_000_000, "1,000,000"),
        ("attachments.max_file_bytes", 1_500_000, "1,500,000 B"),
        ("attachments.max_stored_bytes", 2**30, "1 GiB"),
        ("retain_on_session_keep", True, "yes"),
        ("transcripts.compact_at_percent", 80, "at 80 % of the budget"),
        ("transcripts.token_vocabulary", "cl100k_base", "cl100k_base"),
        ("routing.max_spend_micros_per_day", 25_500_000, "25.50"),
        ("call_limits.read.calls_per_second", 1200, "1,200"),
        ("call_limits.write.bytes_per_second", 2 * 2**20, "2 MiB"),
    ],
)
def test_values_are_in_words(path: str, value: SettingValue, text: str) -> None:
    one = shown({**DEFAULTS, path: value})[path]
    assert (one.text, one.is_default) == (text, False)


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (timedelta(days=90), "90 days"),
        (timedelta(days=1), "24 h"),
        (timedelta(minutes=90), "90 min"),
        (timedelta(seconds=3601), "3,601 s"),
        (timedelta(milliseconds=1500), "1.5 s"),
    ],
)
def test_times_are_exact(time: timedelta, text: str) -> None:
    settings = TenantSettings()
    settings.delete_after.FromTimedelta(time)
    assert text_of(settings, "delete_after") == (text, False)


def test_zero_is_the_default_but_for_the_limits_of_attachments() -> None:
    settings = TenantSettings(max_spawn_depth=0)
    settings.archive_after.FromSeconds(0)
    settings.attachments.enabled = False
    assert text_of(settings, "max_spawn_depth") == ("5", True)
    assert text_of(settings, "archive_after") == ("30 days", True)
    assert text_of(settings, "attachments.enabled") == ("no", False)
    assert text_of(settings, "attachments.max_file_count") == ("0", False)
    assert text_of(settings, "attachments.max_file_bytes") == ("0 B", False)
    assert text_of(settings, "attachments.max_stored_bytes") == ("100 GiB", True)
    assert text_of(settings, "attachments.retention") == ("as long as their sessions", True)


def test_the_limits_of_attachments_that_the_mesh_writes_out_are_defaults() -> None:
    settings = TenantSettings()
    settings.attachments.enabled, settings.attachments.max_file_count = True, 50
    settings.attachments.max_file_bytes, settings.attachments.max_total_bytes = 2**20, 5 * 2**20
    limits = [one for path, one in shown(setting_values(settings)).items() if path.startswith("attachments")]
    assert [one for one in limits if not one.is_default] == []


def test_each_policy_for_models_that_cannot_see_has_words() -> None:
    settings = TenantSettings()
    settings.routing.blind_model_policy = BLIND_MODEL_POLICY_STRIP
    assert text_of(settings, "routing.blind_model_policy") == ("the images are left out, with a note", False)
    texts = []
    for number in BlindModelPolicy.values():
        settings.routing.blind_model_policy = number
        texts.append(text_of(settings, "routing.blind_model_policy")[0])
    assert len({*texts}) == len(texts)
    assert not any(text.isupper() for text in texts)
