"""Large tool results: when one is large, and the names of its files."""

import pytest
from spawnmesh_transcript.domain.large_results import (
    File,
    about_block_json,
    blob_id_of,
    file_id_of,
    is_large,
    line_count_of,
)


@pytest.mark.parametrize(
    ("block_sizes", "large"), [([], False), ([4, 5], False), ([4, 6], True), ([10], True), ([4, 4, 4], True)]
)
def test_sizes_of_all_blocks_together_make_a_result_large(block_sizes: list[int], large: bool) -> None:
    assert is_large(block_sizes, large_payload_bytes=10) is large


def test_file_id_and_blob_id_name_each_other() -> None:
    assert file_id_of("blb_01k") == "file_01k"
    assert blob_id_of("file_01k") == "blb_01k"
    assert File("blb_01k", 0, "read_file", "", "text/plain", 1, 1, "").file_id == "file_01k"


@pytest.mark.parametrize(
    ("text", "count"), [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("a\nb\n", 2), ("\n\n", 2)]
)
def test_last_line_may_lack_its_line_feed(text: str, count: int) -> None:
    assert line_count_of(text) == count


@pytest.mark.parametrize("block_json", ["", "[]", "{", "[" * 100_000, '{"arguments": "{"}'])
def test_nothing_is_shown_of_a_call_that_cannot_be_read(block_json: str) -> None:
    assert about_block_json(block_json) == ""
