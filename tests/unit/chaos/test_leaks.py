"""The search for content outside of the bucket."""

from pathlib import Path

import pytest

from tests.chaos.random_faults.facts import files_at, find_leaks


def test_content_is_found_in_a_file_and_below_a_folder(tmp_path: Path) -> None:
    (tmp_path / "logs" / "deep").mkdir(parents=True)
    for name in ("logs/deep/a.log", "spans.otlp"):
        (tmp_path / name).write_bytes(b"\x00secret words\x00")
    (tmp_path / "logs" / "b.log").write_bytes(b"nothing")
    files = files_at([tmp_path / "logs", tmp_path / "spans.otlp"])
    assert len(files) == 3
    found = find_leaks(files, [b"secret words"])
    assert found == [str(tmp_path / "logs/deep/a.log"), str(tmp_path / "spans.otlp")]


def test_path_that_does_not_exist_is_not_searched_in_vain(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files_at([tmp_path, tmp_path / "missing"])
