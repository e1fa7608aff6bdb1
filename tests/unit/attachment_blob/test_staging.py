"""The outcome of staging a set, from the rows that its transaction wrote and locked."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from spawnmesh_attachment_blob.domain import AttachmentLimits
from spawnmesh_attachment_blob.domain.items import StoredFile
from spawnmesh_attachment_blob.domain.sets import SetToStage
from spawnmesh_attachment_blob.domain.staging import (
    NoRoom,
    StagedRows,
    StageRefusal,
    WrittenSet,
    outcome_of,
)
from spawnmesh_attachment_blob.domain.storage import StorageUsage

FULL = StorageUsage(stored_bytes=9, uploading_bytes=1, max_stored_bytes=10)
LIMITS = AttachmentLimits()
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def requested(*, with_bytes: str = "ab", uploaded: str = "") -> SetToStage:
    """Build a set of files whose hashes are single letters."""
    files = tuple(StoredFile(sha256, 1, sha256, "") for sha256 in with_bytes + uploaded)
    return SetToStage("att_1", "ses_1", files, {sha256: b"x" for sha256 in with_bytes}, "suffix")


def referring(*, with_bytes: str = "", uploaded: str = "", referenced: str = "") -> SetToStage:
    call = requested(with_bytes=with_bytes, uploaded=uploaded + referenced)
    return replace(call, referenced_hashes=frozenset(referenced))


def rows(unstored: str = "", stored: str = "") -> StagedRows:
    return StagedRows(LIMITS, NOW, frozenset(unstored), frozenset(stored))


@pytest.mark.parametrize(
    ("written", "outcome"),
    [
        (StagedRows(None, None), StageRefusal.UNKNOWN_TENANT),
        (StagedRows(AttachmentLimits(max_files=1), None), StageRefusal.POLICY_CHANGED),
        (StagedRows(LIMITS, None), StageRefusal.EXISTS),
        (
            StagedRows(AttachmentLimits(max_files=1), None, usage=FULL, needed_bytes=1),
            StageRefusal.POLICY_CHANGED,
        ),
    ],
)
def test_a_set_that_was_not_written_has_no_missing_blobs(written: StagedRows, outcome: StageRefusal) -> None:
    assert not written.missing(requested())
    assert not written.can_restore(requested())
    assert outcome_of(written, requested(), LIMITS) is outcome


def test_a_set_that_was_not_written_since_there_was_no_room() -> None:
    assert outcome_of(StagedRows(LIMITS, None, usage=FULL, needed_bytes=1), requested(), LIMITS) == NoRoom(
        FULL
    )


def test_a_set_that_needs_no_room_was_not_written_since_it_exists() -> None:
    repeated = StagedRows(LIMITS, None, usage=FULL, needed_bytes=0)
    assert outcome_of(repeated, requested(), LIMITS) is StageRefusal.EXISTS


@pytest.mark.parametrize(("unstored", "stored"), [("ab", ""), ("a", "b"), ("", "ab")])
def test_a_set_is_written_if_each_blob_was_stored_before_or_is_stored_now(unstored: str, stored: str) -> None:
    written = rows(unstored, stored)

    assert not written.missing(requested())
    assert outcome_of(written, requested(), LIMITS) == WrittenSet(NOW, frozenset(unstored))


def test_missing_blobs_are_restored_with_the_bytes_of_the_call() -> None:
    first = rows("a")
    assert first.missing(requested()) == {"b"}
    assert first.can_restore(requested())

    again = first.with_stored(frozenset("a")).with_restored(frozenset("b"))
    assert outcome_of(again, requested(), LIMITS) == WrittenSet(NOW, frozenset("ab"))


@pytest.mark.parametrize("unstored", ["a", ""])
def test_bytes_that_were_uploaded_before_and_are_gone_refuse_the_set(unstored: str) -> None:
    call = requested(with_bytes="a", uploaded="u")

    assert "u" in rows(unstored).missing(call)
    assert not rows(unstored).can_restore(call)
    assert outcome_of(rows(unstored), call, LIMITS) is StageRefusal.UPLOAD_GONE


@pytest.mark.parametrize(
    ("call", "stored", "outcome"),
    [
        (referring(referenced="r"), "", StageRefusal.REFERENCE_GONE),
        (referring(referenced="rs"), "r", StageRefusal.REFERENCE_GONE),
        (referring(with_bytes="a", referenced="r"), "", StageRefusal.REFERENCE_GONE),
        (referring(uploaded="u", referenced="r"), "u", StageRefusal.REFERENCE_GONE),
        (referring(uploaded="r", referenced="r"), "", StageRefusal.REFERENCE_GONE),
        (referring(uploaded="u", referenced="r"), "r", StageRefusal.UPLOAD_GONE),
        (referring(uploaded="u", referenced="r"), "", StageRefusal.UPLOAD_GONE),
    ],
)
def test_bytes_of_other_sets_that_are_gone_refuse_the_set(
    call: SetToStage, stored: str, outcome: StageRefusal
) -> None:
    assert not rows(stored=stored).can_restore(call)
    assert outcome_of(rows(stored=stored), call, LIMITS) is outcome


def test_bytes_of_another_set_that_the_call_has_too_are_restored() -> None:
    call = referring(with_bytes="a", referenced="a")

    assert rows().can_restore(call)
    assert outcome_of(rows(unstored="a"), call, LIMITS) == WrittenSet(NOW, frozenset("a"))
