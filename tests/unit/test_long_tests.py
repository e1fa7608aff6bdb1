"""The list of the long tests names tests that exist, and a measurement renews it."""

import re
from pathlib import Path

import pytest

from tests.support import long_tests
from tests.support.long_tests import ROOT, listed, measured

REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.a.test_b" name="test_short[1]" time="0.2" />
<testcase classname="tests.unit.a.test_b" name="test_long[quick]" time="0.1" />
<testcase classname="tests.unit.a.test_b" name="test_long[slow [1]]" time="1.5" />
<testcase classname="tests.mesh.test_readme" name="test_commands_work_as_they_are_typed" time="16.0" />
<testcase classname="tests.mesh.test_dashboards" name="test_behind_long_work" time="0.1" />
</testsuite></testsuites>"""


def test_every_long_test_exists() -> None:
    texts = {file: (ROOT / file).read_text() for file in {name.partition("::")[0] for name in listed()}}
    for name in listed():
        file, _, function = name.partition("::")
        assert re.search(rf"def {function}\(", texts[file]), f"{name}: renew the list by `make long-tests`"


def test_a_function_is_long_by_its_slowest_case_or_by_its_fixtures_unless_it_always_runs(
    tmp_path: Path,
) -> None:
    report = tmp_path / "tests.xml"
    report.write_text(REPORT)
    assert measured(report) == [
        "tests/mesh/test_dashboards.py::test_behind_long_work",
        "tests/unit/a/test_b.py::test_long",
    ]


def test_the_functions_of_the_list_are_marked(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = request.node
    assert item.get_closest_marker("long") is None
    long_tests.mark_long([item], ROOT)
    assert item.get_closest_marker("long") is None
    name = f"{item.path.relative_to(ROOT).as_posix()}::{item.originalname}"
    monkeypatch.setattr(long_tests, "listed", lambda: {name})
    long_tests.mark_long([item], ROOT)
    assert item.get_closest_marker("long") is not None
