"""References of a new set to files of other sets: access, state, names and lost bytes."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_attachment_blob.domain.items import FileRef, StoredFile
from spawnmesh_attachment_blob.domain.references import ReferencedSets, files_of_references
from spawnmesh_attachment_blob.domain.sets import AttachmentSet, SetState
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SESSIONS = ("ses_a", "ses_b", "ses_c")
SETS = ("att_1", "att_2", "att_3")
NAMES = ("x", "y", "z")

files = st.builds(StoredFile, st.sampled_from(NAMES), st.integers(0, 9), st.sampled_from("hij"), st.just("t"))
contents = st.lists(files, max_size=3, unique_by=lambda file: file.name).map(tuple)
sets = st.builds(
    AttachmentSet,
    st.just("set by its key"),
    st.sampled_from((*SESSIONS, "")),
    st.sampled_from(SetState),
    contents,
    st.just(NOW),
    reader_session_ids=st.lists(st.sampled_from(SESSIONS), max_size=2).map(tuple),
)
found = st.builds(
    ReferencedSets,
    st.dictionaries(st.sampled_from(SETS), sets),
    st.frozensets(st.sampled_from("hij"), max_size=1),
)
references = st.lists(
    st.builds(FileRef, st.sampled_from(SETS), st.sampled_from(NAMES), st.sampled_from(("", "new"))),
    max_size=3,
)


def expected(ref: FileRef, found: ReferencedSets, reader: str | None) -> StoredFile | Reason:
    """Apply the rules in their order, independently of the code."""
    source = found.by_id.get(ref.set_id)
    if source is None or source.session_id == "":
        return Reason.NOT_FOUND
    if reader and reader != source.session_id and reader not in source.reader_session_ids:
        return Reason.NOT_FOUND
    if source.state == "RELEASED":
        return Reason.ATTACHMENT_SET_STATE
    named = {file.name: file for file in source.files}
    if ref.name not in named:
        return Reason.NOT_FOUND
    file = named[ref.name]
    if file.sha256 in found.lost_hashes:
        return Reason.STORED_HASH_DIFFERS
    return StoredFile(ref.new_name or ref.name, file.size_bytes, file.sha256, file.mime_type)


@given(references, found, st.sampled_from((None, *SESSIONS)))
def test_each_reference_gives_a_file_or_the_first_of_them_a_refusal(
    refs: list[FileRef], found: ReferencedSets, reader: str | None
) -> None:
    wanted = [expected(ref, found, reader) for ref in refs]
    refusals = [one for one in wanted if isinstance(one, Reason)]
    if not refusals:
        assert list(files_of_references(refs, found, reader)) == wanted
        return
    with pytest.raises(MeshError) as refusal:
        files_of_references(refs, found, reader)
    assert refusal.value.reason is refusals[0]
