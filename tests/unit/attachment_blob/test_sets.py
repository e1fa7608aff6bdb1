"""Attachment sets: repeated calls, readers and released sets."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from spawnmesh_attachment_blob.domain.items import StoredFile, ValidFile
from spawnmesh_attachment_blob.domain.sets import (
    AttachmentSet,
    SetState,
    SetToStage,
    object_key,
    require_file,
    require_same_set,
    require_set,
    stored_files,
)
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

HASH = "ab" + 62 * "c"
FILE = StoredFile("a.txt", 3, HASH, "text/plain")
OTHER = replace(FILE, name="b.txt")
FOUND = AttachmentSet("set_1", "ses_1", SetState.ATTACHED, (OTHER, FILE), datetime(2026, 1, 2, tzinfo=UTC))
RELEASED = replace(FOUND, state=SetState.RELEASED, files=())
REQUEST = SetToStage("set_1", "ses_1", (OTHER, FILE), {HASH: b"abc"}, key_suffix="7")


def test_object_key_begins_with_the_first_two_digits_of_the_hash() -> None:
    assert object_key(HASH, "7") == f"sha256/ab/{HASH}.7"
    assert REQUEST.data_by_key([HASH]) == {f"sha256/ab/{HASH}.7": b"abc"}


def test_manifest_has_name_size_hash_and_type() -> None:
    assert stored_files([ValidFile("a.txt", b"abc", HASH, "text/plain")]) == (FILE,)


@pytest.mark.parametrize("state", [SetState.STAGED, SetState.ATTACHED])
def test_repeated_call_gets_the_existing_set(state: SetState) -> None:
    found = replace(FOUND, state=state)
    assert require_same_set(found, REQUEST) is found


@pytest.mark.parametrize(
    ("found", "request_", "reason", "facts"),
    [
        (RELEASED, REQUEST, Reason.ATTACHMENT_SET_STATE, {"set_id": "set_1", "state": "RELEASED"}),
        (FOUND, replace(REQUEST, session_id="ses_2"), Reason.ALREADY_EXISTS, {"set_id": "set_1"}),
        (FOUND, replace(REQUEST, files=(FILE, OTHER)), Reason.ALREADY_EXISTS, {"set_id": "set_1"}),
        (FOUND, replace(REQUEST, run_id="run_1"), Reason.ALREADY_EXISTS, {"set_id": "set_1"}),
        (FOUND, replace(REQUEST, reader_session_ids=("ses_0",)), Reason.ALREADY_EXISTS, {"set_id": "set_1"}),
        (replace(FOUND, run_id="run_1"), REQUEST, Reason.ALREADY_EXISTS, {"set_id": "set_1"}),
        (replace(FOUND, reader_session_ids=("ses_0",)), REQUEST, Reason.ALREADY_EXISTS, {"set_id": "set_1"}),
    ],
)
def test_call_that_does_not_repeat_the_first_is_refused(
    found: AttachmentSet, request_: SetToStage, reason: Reason, facts: dict[str, str]
) -> None:
    with pytest.raises(MeshError) as caught:
        require_same_set(found, request_)
    assert (caught.value.reason, caught.value.facts) == (reason, facts)


@pytest.mark.parametrize("found", [FOUND, RELEASED])
@pytest.mark.parametrize("reader_session_id", [None, "ses_1"])
def test_set_is_seen_by_services_and_by_its_session(
    found: AttachmentSet, reader_session_id: str | None
) -> None:
    assert require_set(found, "set_1", reader_session_id) is found


@pytest.mark.parametrize("found", [FOUND, RELEASED])
@pytest.mark.parametrize("reader_session_id", ["ses_0", "ses_7"])
def test_set_is_seen_by_its_readers(found: AttachmentSet, reader_session_id: str) -> None:
    readable = replace(found, reader_session_ids=("ses_0", "ses_7"))
    assert require_set(readable, "set_1", reader_session_id) is readable


@pytest.mark.parametrize(
    ("found", "reader_session_id"),
    [
        pytest.param(None, None, id="absent"),
        pytest.param(replace(RELEASED, session_id=""), None, id="a tombstone"),
        pytest.param(replace(RELEASED, session_id=""), "", id="a tombstone, for a reader without a session"),
        pytest.param(FOUND, "ses_2", id="of another session"),
        pytest.param(
            replace(FOUND, reader_session_ids=("ses_20", "ses_0")),
            "ses_2",
            id="of another session with readers",
        ),
        pytest.param(
            replace(RELEASED, session_id="", reader_session_ids=("ses_0",)),
            "ses_0",
            id="a tombstone's reader",
        ),
        pytest.param(FOUND, "", id="for a reader without a session"),
    ],
)
def test_set_is_not_found(found: AttachmentSet | None, reader_session_id: str | None) -> None:
    with pytest.raises(MeshError) as caught:
        require_set(found, "set_1", reader_session_id)
    assert caught.value.reason is Reason.NOT_FOUND
    assert caught.value.facts == {"resource": "attachment set", "id": "set_1"}


def test_file_is_found_by_its_name() -> None:
    assert require_file(FOUND, "a.txt") is FILE
    assert require_file(replace(FOUND, state=SetState.STAGED), "b.txt") is OTHER


@pytest.mark.parametrize(
    ("found", "name", "reason"),
    [
        (FOUND, "c.txt", Reason.NOT_FOUND),
        (replace(FOUND, state=SetState.RELEASED), "a.txt", Reason.ATTACHMENT_SET_STATE),
    ],
)
def test_unknown_file_and_file_of_a_released_set_are_refused(
    found: AttachmentSet, name: str, reason: Reason
) -> None:
    with pytest.raises(MeshError) as caught:
        require_file(found, name)
    assert caught.value.reason is reason
