"""The statements and the schema of the session service steer the planner by no trick."""

import re
from pathlib import Path

import pytest
import spawnmesh_session

_TRICKS = re.compile(
    r"\boffset 0\b|\bctid\b|\benable_\w+|\bplpgsql\b|\bcreate (?:constraint )?trigger\b", re.IGNORECASE
)
_FILES = sorted(Path(spawnmesh_session.__file__).parent.glob("**/*.sql"))


@pytest.mark.parametrize("file", _FILES, ids=lambda file: file.name)
def test_sql_has_no_procedure_and_no_planner_trick(file: Path) -> None:
    assert _TRICKS.findall(file.read_text(encoding="utf-8")) == []


def test_every_file_of_statements_is_read() -> None:
    assert {"0001_session.sql", "runs.sql", "run_queue.sql"} <= {file.name for file in _FILES}
