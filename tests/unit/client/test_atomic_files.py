"""Files that appear complete or not at all."""

import os
from pathlib import Path

import pytest
from spawnmesh_client.atomic_files import WriteInProgress, atomic_file


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def write_and_fail(target: Path) -> None:
    with atomic_file(target, overwrite=True) as file:
        file.write(b"part")
        raise ZeroDivisionError


def test_a_file_is_there_when_it_is_complete(tmp_path: Path) -> None:
    # The longest possible name: the temporary file must have a valid name, too.
    target = tmp_path / ("n" * 255)
    with atomic_file(target, overwrite=False) as file:
        file.write(b"all")
        assert target.name not in names(tmp_path)

    assert (names(tmp_path), target.read_bytes()) == ([target.name], b"all")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_second_writer_is_refused_while_the_first_writes_and_harms_nothing(
    tmp_path: Path, overwrite: bool
) -> None:
    target = tmp_path / "a"
    with atomic_file(target, overwrite=overwrite) as file:
        file.write(b"first")
        for _ in range(2):
            with pytest.raises(WriteInProgress), atomic_file(target, overwrite=overwrite):
                pytest.fail("two write it at once")
        with atomic_file(tmp_path / "b", overwrite=overwrite) as other:
            other.write(b"other")

    assert (names(tmp_path), target.read_bytes()) == (["a", "b"], b"first")


def test_a_file_that_came_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    with (
        pytest.raises(FileExistsError, match="a is there already"),
        atomic_file(tmp_path / "a", overwrite=False),
    ):
        (tmp_path / "a").write_text("mine")

    assert (names(tmp_path), (tmp_path / "a").read_text()) == (["a"], "mine")


def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    with pytest.raises(ZeroDivisionError):
        write_and_fail(tmp_path / "a")

    assert (names(tmp_path), (tmp_path / "a").read_text()) == (["a"], "mine")


def test_a_leftover_that_is_a_second_name_of_the_file_is_removed(
    tmp_path: Path,
) -> None:
    """The process was killed between linking the file and unlinking its temporary name."""
    target = tmp_path / "a"
    with atomic_file(target, overwrite=False):
        (part,) = names(tmp_path)
    target.write_text("whole")
    os.link(target, tmp_path / part)

    with pytest.raises(ZeroDivisionError):
        write_and_fail(target)

    assert (names(tmp_path), target.read_text()) == (["a"], "whole")


def test_a_link_under_the_parts_name_is_not_followed(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a", overwrite=False):
        (part,) = names(tmp_path)
    (victim := tmp_path / "victim").write_text("mine")
    (tmp_path / part).symlink_to(victim)

    with pytest.raises(OSError, match="symbolic link"), atomic_file(tmp_path / "a", overwrite=True):
        pytest.fail("it was followed")

    assert victim.read_text() == "mine"
