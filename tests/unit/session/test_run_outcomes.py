"""Announcements of run outcomes, release of files, and retention."""

from datetime import timedelta

import pytest
from spawnmesh_session.domain.inbox import announcement, announcement_key
from spawnmesh_session.domain.runs import RunOutcome, RunState
from spawnmesh_session.domain.sessions import releases_attachments
from spawnmesh_session.domain.spawns import mount_note, mount_path_of
from spawnmesh_session.domain.tenants import retention_of
from spawnmesh_session.domain.text import without_nul


@pytest.mark.parametrize(
    ("cleanup", "retain", "released"),
    [("DELETE", False, True), ("DELETE", True, True), ("KEEP", False, True), ("KEEP", True, False)],
)
def test_files_stay_only_where_session_and_tenant_both_keep_them(
    cleanup: str, retain: bool, released: bool
) -> None:
    assert releases_attachments(cleanup, retain_on_session_keep=retain) is released


def test_announcement_of_a_success_has_the_full_result() -> None:
    text = announcement("ses_1", "sums", RunOutcome(RunState.SUCCEEDED, result_text="line 1\nline 2"))
    assert text.endswith("\n\nline 1\nline 2")
    assert "ses_1 (sums)" in text


def test_announcement_of_a_failure_says_state_and_reason() -> None:
    outcome = RunOutcome(RunState.TIMED_OUT, error_reason="RUN_TIMEOUT", error_message="too slow")
    assert (
        announcement("ses_1", "", outcome)
        == "Session ses_1 has ended without a result: TIMED_OUT, RUN_TIMEOUT. too slow"
    )


def test_announcements_of_two_runs_have_two_keys() -> None:
    assert announcement_key("ses_1", "run_1") == "announce:v1:ses_1:run_1"
    assert announcement_key("ses_1", "run_1") != announcement_key("ses_1", "run_2")


@pytest.mark.parametrize("hint", ["/mnt/in", "C:/in", "a-b_c.d:e", ""])
def test_harmless_mount_path_is_kept(hint: str) -> None:
    assert mount_path_of(hint) == hint


@pytest.mark.parametrize("hint", ["/mnt/in\n", "/mnt/$(id)", "a b", "ü", "/mnt/in\x00"])
def test_odd_mount_path_is_ignored(hint: str) -> None:
    assert mount_path_of(hint) == ""


def test_nul_is_replaced_before_it_is_stored() -> None:
    assert without_nul("a\x00b") == "a\ufffdb"


def test_note_shows_the_hint_and_says_nothing_without_one() -> None:
    assert "`/mnt/in`" in mount_note("/mnt/in")
    assert mount_note("") == ""


@pytest.mark.parametrize(
    ("settings", "archive_after", "delete_after"),
    [
        ({}, timedelta(days=30), None),
        ({"archive_after": "0s", "delete_after": "0s"}, timedelta(days=30), None),
        (
            {"archive_after": "3600s", "delete_after": "86400.500s"},
            timedelta(hours=1),
            timedelta(days=1, seconds=0.5),
        ),
    ],
)
def test_retention_of_what_is_absent_or_zero_has_its_default(
    settings: dict[str, object], archive_after: timedelta, delete_after: timedelta | None
) -> None:
    retention = retention_of(settings)
    assert (retention.archive_after, retention.delete_after) == (archive_after, delete_after)
