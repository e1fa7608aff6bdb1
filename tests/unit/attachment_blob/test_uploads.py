"""Uploads: what may begin, which chunk is next, and which uploads a set may name."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import google_crc32c
import pytest
from spawnmesh_attachment_blob.domain.items import StoredFile
from spawnmesh_attachment_blob.domain.limits import AttachmentLimits
from spawnmesh_attachment_blob.domain.refusal import AttachmentReason, AttachmentRefused
from spawnmesh_attachment_blob.domain.uploads import (
    MAX_UPLOAD_BYTES,
    Chunk,
    NamedUpload,
    Upload,
    UploadKey,
    UploadRef,
    UploadSpec,
    UploadState,
    UploadTotals,
    UploadUsage,
    files_of_uploads,
    hash_differs,
    incomplete,
    require_allowed,
    require_next,
    require_quota,
    require_same_spec,
    require_upload,
    taken_over,
)
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SPEC = UploadSpec("upl_1", "a.txt", size_bytes=10, sha256="a" * 64, mime_type="text/plain")
UPLOAD = Upload(SPEC, "ses_1", UploadState.OPEN, 1, "key", "multipart", 4, NOW, NOW)
QUOTA = UploadUsage(opened=UploadTotals(2, 100), finished=UploadTotals(3, 200))
UNUSED = UploadUsage(UploadTotals(0, 0), UploadTotals(0, 0))


def test_resumed_stream_begins_at_the_durable_bytes() -> None:
    assert UPLOAD.durable_bytes == 4
    assert replace(UPLOAD, state=UploadState.COMPLETE).durable_bytes == 10


def test_row_of_an_upload_is_named_by_upload_and_session() -> None:
    assert UPLOAD.key == UploadKey("ses_1", "upl_1")
    assert UPLOAD.key.row_id == "upl_1.ses_1"


@pytest.mark.parametrize(
    "limits", [AttachmentLimits(max_file_bytes=10), AttachmentLimits(max_total_bytes=10)]
)
def test_file_that_reaches_a_limit_is_allowed(limits: AttachmentLimits) -> None:
    require_allowed(SPEC, limits)


@pytest.mark.parametrize(
    ("spec", "limits", "reason", "facts"),
    [
        (SPEC, AttachmentLimits(enabled=False), AttachmentReason.DISABLED, {}),
        (
            SPEC,
            AttachmentLimits(max_file_bytes=9),
            AttachmentReason.FILE_BYTES_EXCEEDED,
            {"limit_bytes": 9},
        ),
        (
            replace(SPEC, size_bytes=MAX_UPLOAD_BYTES + 1),
            AttachmentLimits(max_file_bytes=2 * MAX_UPLOAD_BYTES),
            AttachmentReason.FILE_BYTES_EXCEEDED,
            {"limit_bytes": MAX_UPLOAD_BYTES},
        ),
        (
            SPEC,
            AttachmentLimits(max_total_bytes=9),
            AttachmentReason.TOTAL_BYTES_EXCEEDED,
            {"limit_bytes": 9},
        ),
    ],
)
def test_file_that_no_set_could_hold_is_refused(
    spec: UploadSpec, limits: AttachmentLimits, reason: AttachmentReason, facts: dict[str, int]
) -> None:
    with pytest.raises(AttachmentRefused) as caught:
        require_allowed(spec, limits)
    assert (caught.value.reason, caught.value.facts) == (reason, facts)


def test_name_that_is_not_portable_is_refused() -> None:
    with pytest.raises(AttachmentRefused) as caught:
        require_allowed(replace(SPEC, name="a/b"), AttachmentLimits())
    assert caught.value.reason is AttachmentReason.INVALID_NAME
    assert set(caught.value.facts) == {"rule"}


@pytest.mark.parametrize(
    ("usage", "is_stored"),
    [
        pytest.param(replace(UNUSED, opened=UploadTotals(1, 90)), False, id="the last open upload"),
        pytest.param(replace(UNUSED, finished=UploadTotals(2, 190)), False, id="the last finished upload"),
        pytest.param(replace(UNUSED, opened=UploadTotals(2, 100)), True, id="known bytes finish at once"),
        pytest.param(replace(UNUSED, finished=UploadTotals(2, 200)), True, id="known bytes add no bytes"),
    ],
)
def test_upload_that_reaches_the_quota_may_begin(usage: UploadUsage, is_stored: bool) -> None:
    require_quota(SPEC, usage, QUOTA, is_stored=is_stored, now=NOW)


@pytest.mark.parametrize(
    ("usage", "is_stored", "facts"),
    [
        (
            replace(UNUSED, opened=UploadTotals(2, 0)),
            False,
            {"budget": "open_uploads", "limit": "2", "open": "2"},
        ),
        (
            replace(UNUSED, opened=UploadTotals(1, 91)),
            False,
            {"budget": "open_upload_bytes", "limit_bytes": "100", "open_bytes": "91", "size_bytes": "10"},
        ),
        (
            replace(UNUSED, finished=UploadTotals(3, 0)),
            True,
            {"budget": "finished_uploads", "limit": "3", "finished": "3"},
        ),
        (
            replace(UNUSED, finished=UploadTotals(1, 191)),
            False,
            {
                "budget": "finished_upload_bytes",
                "limit_bytes": "200",
                "finished_bytes": "191",
                "size_bytes": "10",
            },
        ),
    ],
)
def test_upload_beyond_the_quota_is_refused(
    usage: UploadUsage, is_stored: bool, facts: dict[str, str]
) -> None:
    with pytest.raises(MeshError) as caught:
        require_quota(SPEC, usage, QUOTA, is_stored=is_stored, now=NOW)
    assert caught.value.reason is Reason.BUDGET_EXCEEDED
    assert caught.value.facts == facts


@pytest.mark.parametrize(
    ("first_expire_time", "retry_after_seconds"),
    [(None, 60.0), (NOW + timedelta(seconds=59), 60.0), (NOW + timedelta(seconds=61), 61.0)],
)
def test_refusal_says_when_the_first_finished_upload_expires(
    first_expire_time: datetime | None, retry_after_seconds: float
) -> None:
    usage = UploadUsage(UploadTotals(0, 0), UploadTotals(3, 0), first_expire_time)
    with pytest.raises(MeshError) as caught:
        require_quota(SPEC, usage, QUOTA, is_stored=False, now=NOW)
    assert caught.value.retry_after_seconds == retry_after_seconds


def test_full_open_quota_says_to_retry_after_a_minute() -> None:
    usage = UploadUsage(UploadTotals(2, 0), UploadTotals(0, 0), NOW + timedelta(hours=1))
    with pytest.raises(MeshError) as caught:
        require_quota(SPEC, usage, QUOTA, is_stored=False, now=NOW)
    assert caught.value.retry_after_seconds == 60.0


def test_absent_and_aborting_uploads_are_not_found() -> None:
    assert require_upload(UPLOAD, UPLOAD.key) is UPLOAD
    for found in (None, replace(UPLOAD, state=UploadState.ABORTING)):
        with pytest.raises(MeshError) as caught:
            require_upload(found, UPLOAD.key)
        assert caught.value.facts == {"resource": "upload", "id": "upl_1"}


def test_upload_id_belongs_to_its_first_file() -> None:
    require_same_spec(UPLOAD, SPEC)
    with pytest.raises(MeshError) as caught:
        require_same_spec(UPLOAD, replace(SPEC, sha256="b" * 64))
    assert caught.value.reason is Reason.ALREADY_EXISTS
    assert caught.value.facts == {"upload_id": "upl_1"}


def chunk(offset: int, data: bytes) -> Chunk:
    return Chunk(offset, data, google_crc32c.value(data))


def test_chunk_that_continues_the_upload_up_to_its_end_is_accepted() -> None:
    require_next(SPEC, 4, chunk(4, b"123456"))


@pytest.mark.parametrize(
    ("wrong", "reason", "facts"),
    [
        (chunk(3, b"1"), Reason.UPLOAD_OFFSET_DIFFERS, {"offset": "3", "expected_offset": "4"}),
        (chunk(5, b"1"), Reason.UPLOAD_OFFSET_DIFFERS, {"offset": "5", "expected_offset": "4"}),
        (chunk(4, b"1234567"), Reason.UPLOAD_SIZE_EXCEEDED, {"offset": "4", "size_bytes": "10"}),
        (replace(chunk(4, b"12"), data=b"21"), Reason.UPLOAD_CRC_DIFFERS, {"offset": "4"}),
    ],
)
def test_chunk_that_is_not_the_next_is_refused(wrong: Chunk, reason: Reason, facts: dict[str, str]) -> None:
    with pytest.raises(MeshError) as caught:
        require_next(SPEC, 4, wrong)
    assert caught.value.reason is reason
    assert caught.value.facts == {"upload_id": "upl_1", **facts}


def test_errors_of_a_stream_name_the_upload() -> None:
    assert incomplete("upl_1", 4, 10).facts == {
        "upload_id": "upl_1",
        "durable_bytes": "4",
        "size_bytes": "10",
    }
    assert (hash_differs("upl_1").reason, hash_differs("upl_1").facts) == (
        Reason.UPLOAD_HASH_DIFFERS,
        {"upload_id": "upl_1"},
    )
    assert (taken_over("upl_1").reason, taken_over("upl_1").facts) == (
        Reason.UPLOAD_TAKEN_OVER,
        {"upload_id": "upl_1"},
    )


FILE = StoredFile("a.txt", 10, "a" * 64, "text/plain")


def test_files_of_a_set_have_its_names_or_their_own() -> None:
    found = {"upl_1": NamedUpload(UploadState.COMPLETE, FILE)}
    refs = [UploadRef("upl_1", "new.txt"), UploadRef("upl_1", "")]
    assert files_of_uploads(refs, found) == (replace(FILE, name="new.txt"), FILE)


@pytest.mark.parametrize(
    ("state", "reason", "facts"),
    [
        (None, Reason.NOT_FOUND, {"resource": "upload", "id": "upl_1"}),
        (UploadState.ABORTING, Reason.NOT_FOUND, {"resource": "upload", "id": "upl_1"}),
        (UploadState.OPEN, Reason.UPLOAD_INCOMPLETE, {"upload_id": "upl_1"}),
    ],
)
def test_set_cannot_name_an_upload_that_is_not_complete(
    state: UploadState | None, reason: Reason, facts: dict[str, str]
) -> None:
    found = {} if state is None else {"upl_1": NamedUpload(state, FILE)}
    with pytest.raises(MeshError) as caught:
        files_of_uploads([UploadRef("upl_1", "")], found)
    assert (caught.value.reason, caught.value.facts) == (reason, facts)
