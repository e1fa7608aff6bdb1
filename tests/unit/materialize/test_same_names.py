"""This library and the attachment-blob service compare names by the same rule."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_attachment_blob.domain.names import duplicate_key, name_problem
from spawnmesh_materialize import FileSource, MaterializeError, MaterializeReason, materialize
from spawnmesh_materialize.manifest import check_names

EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
# Letters for which the order of case folding and composition matters.
NAMES = st.text(
    st.sampled_from("aAßẞſKkΑαάιΙ\u0345\u0301\u0300\u0307İıΐ\u01c4ﬁ") | st.characters(),
    min_size=1,
    max_size=6,
)


def files(*names: str) -> list[FileSource]:
    return [FileSource(name, 0, EMPTY_SHA256, ()) for name in names]


def is_written(*names: str) -> bool:
    try:
        check_names(files(*names))
    except MaterializeError as refusal:
        if refusal.reason is not MaterializeReason.INVALID_NAME:
            raise
        return False
    return True


def is_accepted(*names: str) -> bool:
    return not any(map(name_problem, names)) and len(set(map(duplicate_key, names))) == len(names)


@given(NAMES, NAMES)
def test_names_that_the_service_accepts_are_written(one: str, other: str) -> None:
    if is_accepted(one, other):
        assert is_written(one, other)
    if is_written(one) and is_written(other):
        assert is_written(one, other) == (duplicate_key(one) != duplicate_key(other))


@pytest.mark.parametrize(
    ("one", "other"), [("\u03b1\u0345\u0301.txt", "\u03b1\u03b9\u0301.txt"), ("a.txt", "b.txt")]
)
def test_files_of_such_names_are_stored_separately(tmp_path: Path, one: str, other: str) -> None:
    assert is_accepted(one, other)
    materialize(tmp_path, "att_1", files(one, other))
    written = {file.name for file in (tmp_path / ".spawnmesh/attachments/att_1").iterdir()}
    assert written == {one, other, ".manifest.json"}


@pytest.mark.parametrize(
    ("one", "other"), [("a.txt", "A.txt"), ("é", "e\u0301"), ("ΐ", "\u03b9\u0308\u0301")]
)
def test_names_that_differ_by_case_or_composition_are_refused_by_both(one: str, other: str) -> None:
    assert not is_accepted(one, other)
    assert not is_written(one, other)
