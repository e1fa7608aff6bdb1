"""A command that is printed works in the shell that has started the process."""

import sys
from pathlib import Path

import pytest
from spawnmesh_devstack.typed_command import typed_command


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "the bin" / "spawnmesh"
    file.parent.mkdir()
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_name_is_enough_where_the_path_leads_to_the_program(program: Path) -> None:
    assert typed_command({"PATH": f"/nowhere:{program.parent}"}, [str(program)]) == "spawnmesh"


@pytest.mark.parametrize("path", ["", "/nowhere"])
def test_way_to_the_program_is_quoted_where_the_path_does_not_lead_there(program: Path, path: str) -> None:
    assert typed_command({"PATH": path}, [str(program)]) == f"'{program}'"


def test_another_program_of_the_name_is_not_taken(program: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "spawnmesh"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    assert typed_command({"PATH": str(other.parent)}, [str(program)]) == f"'{program}'"


def test_module_and_the_word_of_make(program: Path) -> None:
    assert typed_command({}, ["/somewhere/__main__.py"]) == f"{sys.executable} -m spawnmesh_command"
    assert (
        typed_command({"SPAWNMESH_COMMAND": ".venv/bin/spawnmesh"}, [str(program)]) == ".venv/bin/spawnmesh"
    )
