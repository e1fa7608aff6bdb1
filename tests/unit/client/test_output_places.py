"""The places of published files in a directory: every file has one, whatever the agent names it."""

import unicodedata
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st
from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentFile
from spawnmesh.session.v1.output_pb2 import OutputSet
from spawnmesh_client.outputs import placed
from spawnmesh_core.ids import IdKind, derived_id, new_id

_RUN_ID = new_id(IdKind.RUN)
IDS = [derived_id(IdKind.ATTACHMENT_SET, f"{number}:{_RUN_ID}") for number in range(4)]
FIRST, SECOND, THIRD, FOREIGN = IDS
OF_IDS = [form for one in IDS for form in (one, one.upper(), f"{one}.2", f"{one[:-1]}", one.title())]
NAMES = ["report.md", "Report.MD", "att_notes.md", "ß", "ss", "SS", "\u017fs", "é", "e\u0301", *OF_IDS]
HASHES = ["11", "22", "33"]

files = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(HASHES)), max_size=5)
listings = st.lists(files, max_size=3)

Listing = list[list[tuple[str, str]]]


def sets_of(listing: Listing) -> list[OutputSet]:
    return [
        OutputSet(set_id=set_id, files=[AttachmentFile(name=name, sha256=sha256) for name, sha256 in one])
        for set_id, one in zip(IDS, listing, strict=False)
    ]


def parts_of(sets: list[OutputSet]) -> list[tuple[str, ...]]:
    """Return the parts of each place as a file system does that ignores case and composition."""
    return [
        tuple(unicodedata.normalize("NFC", unicodedata.normalize("NFC", part).casefold()) for part in parts)
        for parts in (one.place.parts for one in placed(sets))
    ]


def assert_no_ancestors(places: list[tuple[str, ...]]) -> None:
    for above, below in pairwise(sorted(set(places))):
        assert below[: len(above)] != above


@given(listings)
@settings(max_examples=400)
@example([[("report.md", "11"), (SECOND, "11")], [("report.md", "22"), (FIRST, "11")]])
@example([[("report.md", "11")], [(FIRST.upper(), "11"), ("report.md", "22")]])
@example([[("ss", "11"), ("SS", "22"), ("ß", "33"), (f"{FIRST}.2", "11")]])
def test_no_place_is_taken_twice_and_none_is_a_directory_of_another(listing: Listing) -> None:
    sets = sets_of(listing)
    places = parts_of(sets)
    assert len(places) == len(set(places))
    assert_no_ancestors(places)
    assert {(one.file.name, one.file.sha256) for one in placed(sets)} == {
        pair for one in listing for pair in one
    }
    assert all(one.place.name == one.file.name for one in placed(sets))


@given(listings)
@settings(max_examples=200)
@example([[(SECOND, "11"), ("report.md", "11")], [("report.md", "22")], [("report.md", "33")]])
def test_files_of_an_earlier_save_are_no_directories_that_a_later_one_needs(listing: Listing) -> None:
    sets = sets_of(listing)
    assert_no_ancestors([place for end in range(len(sets) + 1) for place in parts_of(sets[:end])])


def test_only_a_name_that_begins_as_an_id_is_below_its_own_set() -> None:
    names = [FOREIGN, f"{FIRST.upper()}.md", f"{FIRST[:-1]}", "att_notes.md", "report.md"]
    sets = sets_of([[(name, "11") for name in names]])
    assert [str(one.place) for one in placed(sets)] == [
        f"{FIRST}/{FOREIGN}",
        f"{FIRST}/{FIRST.upper()}.md",
        FIRST[:-1],
        "att_notes.md",
        "report.md",
    ]
