"""The files and the tests that the threat model names exist."""

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture" / "security.md").read_text()
NAMED_TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
NAMED_FILE = re.compile(r"\b(?:libs|services|deploy|tests)/[\w./-]+\.\w+")


@cache
def attacks_of(file: str) -> frozenset[str]:
    """Return the names of the test functions in a file; none if it does not exist."""
    path = ROOT / file
    found = re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE) if path.exists() else []
    return frozenset(found)


def test_named_tests_exist() -> None:
    named = NAMED_TEST.findall(PAGE)
    assert named
    assert [f"{file}::{name}" for file, name in named if name not in attacks_of(file)] == []


def test_named_files_exist() -> None:
    named = NAMED_FILE.findall(PAGE)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_each_promise_names_its_mechanism_and_a_test_that_attacks_it() -> None:
    promises = re.search(r"## Boundaries\n.*?(?=\n## )", PAGE, re.DOTALL)
    assert promises
    rows = [line for line in promises.group().splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| promise |")]
    assert rows
    lacking = []
    for row in rows:
        promise, kept_by, attacked_by = row.strip("| ").split(" | ")
        if not kept_by or not NAMED_TEST.search(attacked_by):
            lacking.append(promise)
    assert lacking == []
