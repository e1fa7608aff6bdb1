"""The tests that take long, which `make test` leaves to `make test-long`.

They start and kill whole meshes, hang servers, or wait for what takes time. `tests/long_tests.txt`
names their functions, as they were measured. A new test is not long until it is measured:

    make long-tests
"""

import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

LONG_SECONDS = 1.0
"""A function is long if one of its cases takes so long, without its fixtures."""

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "long_tests.txt"
# The main job from end to end is worth its time in every run. So are the way of a new user to an
# answer, by a program in Python, in TypeScript and with curl, and the rules of the whole repository.
_ALWAYS = (
    "tests/deploy/test_chart.py::test_helm_lint_finds_nothing",
    "tests/mesh/test_demo.py::test_one_trace_shows_every_service_and_the_calls_between_them",
    "tests/mesh/test_first_answer.py::test_python_program_streams_an_answer",
    "tests/mesh/test_first_answer.py::test_typescript_program_streams_an_answer",
    "tests/mesh/test_http_howto.py::test_commands_work_as_they_are_typed",
    "tests/mesh/test_readme.py::test_commands_work_as_they_are_typed",
    "tests/mesh/test_tutorial.py::test_every_block_works_and_prints_what_the_page_says",
    "tests/unit/docs/test_references.py::test_programs_find_every_page_as_markdown",
    "tests/unit/postgres/test_single_shard.py::test_no_statement_reads_distributed_tables_of_every_tenant",
    "tests/unit/protos/test_breaking_changes.py::test_contracts_do_not_break_the_baseline",
    "tests/unit/test_dead_code.py::test_every_statement_is_run_by_the_module_beside_it",
    "tests/unit/test_dead_code.py::test_private_names_of_libraries_are_used_in_workarounds_alone",
)
# Their calls are short, and the work that they look at takes long.
_LONG_FIXTURES = ("tests/mesh/test_dashboards.py::",)
_HEADER = """\
# The functions of tests that take long: see tests/support/long_tests.py. Written by `make long-tests`.
"""


def listed() -> frozenset[str]:
    """Return the functions in the list, each as `tests/….py::test_…`."""
    return frozenset(line for line in LIST.read_text().splitlines() if line and not line.startswith("#"))


def mark_long(items: Iterable[pytest.Item], root: Path) -> None:
    """Mark the tests of the listed functions with `long`."""
    names = listed()
    for item in items:
        function = f"{item.path.relative_to(root).as_posix()}::{getattr(item, 'originalname', item.name)}"
        if function in names:
            item.add_marker(pytest.mark.long)


def measured(report: Path) -> list[str]:
    """Return the long functions of a report in the JUnit form, with the durations of calls alone."""
    slowest: dict[str, float] = defaultdict(float)
    for case in ET.parse(report).getroot().iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        function = f"{file}::{case.get('name', '').partition('[')[0]}"
        slowest[function] = max(slowest[function], float(case.get("time", 0)))
    long = (
        name
        for name, seconds in slowest.items()
        if seconds >= LONG_SECONDS or name.startswith(_LONG_FIXTURES)
    )
    return sorted(name for name in long if name not in _ALWAYS)


if __name__ == "__main__":
    names = measured(Path(sys.argv[1]))
    LIST.write_text(_HEADER + "".join(f"{name}\n" for name in names))
    print(f"{LIST.relative_to(ROOT)}: {len(names)} functions")
