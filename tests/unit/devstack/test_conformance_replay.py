"""The replay of cases prints differences and counts, and names files and areas that do not exist."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.conformance.__main__ import main
from spawnmesh_devstack.conformance.areas import AREAS
from spawnmesh_devstack.conformance.cases import BadCase, Case, CaseResult
from spawnmesh_devstack.conformance.replay import replay_cases

CASES = Path(__file__).parents[1] / "attachment_blob" / "cases" / "attachments_name.json"


def answering(outcomes: dict[str, CaseResult | Exception]) -> Callable[[Case], Awaitable[CaseResult]]:
    async def replay(case: Case) -> CaseResult:
        outcome = outcomes[case.case_id]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return replay


async def lines_of(outcomes: dict[str, CaseResult | Exception]) -> list[str]:
    cases = [Case(case_id, None, None) for case_id in outcomes]
    return (await replay_cases(answering(outcomes), cases)).lines()


async def test_ids_that_differ_come_with_why_and_the_counts_come_last() -> None:
    assert await lines_of(
        {
            "A": CaseResult(),
            "B": CaseResult("came x, expected y"),
            "C\x1b": BadCase("given is no object"),
            "D": MeshError(Reason.DEPENDENCY_UNAVAILABLE, "S3 does not answer\n"),
            "E": RecursionError(),
            "F": CaseResult(),
        }
    ) == [
        "B: came x, expected y",
        r"C\x1b: not replayed: given is no object",
        r"D: came DEPENDENCY_UNAVAILABLE: S3 does not answer\n",
        "E: not replayed: it is nested too deep",
        "2 passed, 4 failed",
    ]


async def test_what_no_service_was_asked_is_told_and_counted() -> None:
    assert await lines_of(
        {"A": CaseResult(without_service=True), "B": CaseResult("x", without_service=True)}
    ) == [
        "B: x",
        "judged by the rule alone, since no request can carry them: A, B",
        "1 passed, 1 failed",
    ]


async def test_no_cases_are_none_passed_and_none_failed() -> None:
    assert await lines_of({}) == ["0 passed, 0 failed"]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    return line


def test_area_that_there_is_not_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, "nothing", str(CASES))
    assert line.startswith("error: there is no area 'nothing'")
    assert all(area in line for area in AREAS)


def test_file_that_is_not_there_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "cannot be read" in refusal(capsys, "attachments_name", str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "no mesh is running on"),
        ("{", "does not say where"),
        ('{"targets": {}, "keys": "k"}', "does not say where"),
        ("[]", "does not say where"),
    ],
)
def test_mesh_that_is_not_there_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str | None, told: str
) -> None:
    if content is not None:
        (tmp_path / "mesh.json").write_text(content)
    assert told in refusal(capsys, "attachments_name", str(CASES), "--mesh", str(tmp_path))
