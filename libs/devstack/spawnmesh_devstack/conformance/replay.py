"""Replay files of cases and report the result."""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spawnmesh_core.errors import MeshError

from spawnmesh_devstack.conformance.areas import AREAS
from spawnmesh_devstack.conformance.cases import BadCase, Case, CaseResult, read_cases
from spawnmesh_devstack.conformance.mesh import Deployment, MeshAccess, open_mesh_access
from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.stack import open_stack

ALL = "all"
"""In place of an area: every area that has a file."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The verdict on each case, in the order of the file."""

    verdicts: Sequence[tuple[Case, CaseResult]]

    @property
    def failed_count(self) -> int:
        """The number of cases with another outcome than expected, and of cases that could not be
        replayed.
        """
        return sum(bool(verdict.problem) for _, verdict in self.verdicts)

    def lines(self) -> list[str]:
        """Return one line for each difference and for each case that no service judged, and last `N
        passed, M failed`.
        """
        lines = [f"{_name(case)}: {verdict.problem}" for case, verdict in self.verdicts if verdict.problem]
        alone = [_name(case) for case, verdict in self.verdicts if verdict.without_service]
        if alone:
            lines.append(f"judged by the rule alone, since no request can carry them: {', '.join(alone)}")
        return [*lines, f"{len(self.verdicts) - self.failed_count} passed, {self.failed_count} failed"]


async def replay_files(
    area: str, place: Path, *, deployment: Deployment | None, report: Callable[[str], None]
) -> dict[str, Replayed]:
    """Replay the file of the area; for `all`, each `<area>.json` in the directory `place`.

    Without a deployment, a mesh is started for it. Return what became of each area. Raises
    StackError for an unknown area, a file without cases, and a mesh that is not running.
    """
    cases = {name: read_cases(file) for name, file in _files_of(area, place).items()}
    replayed = {}
    async with _mesh(deployment, report) as mesh:
        for name, listed in cases.items():
            replayed[name] = await replay_cases(partial(AREAS[name], mesh), listed)
    return replayed


def _files_of(area: str, place: Path) -> dict[str, Path]:
    if area == ALL:
        files = {file.stem: file for file in sorted(place.glob("*.json"))}
        if not files:
            raise StackError(f"{place} holds no <area>.json")
    else:
        files = {area: place}
    if unknown := sorted(set(files) - set(AREAS)):
        raise StackError(f"there is no area {unknown[0]!a}; there are {', '.join(sorted(AREAS))}")
    return files


async def replay_cases(replay: Callable[[Case], Awaitable[CaseResult]], cases: Sequence[Case]) -> Replayed:
    """Replay one case after the other. A case that cannot be replayed, or that raises, counts as
    failed with the cause.
    """
    return Replayed([(case, await _verdict(replay, case)) for case in cases])


@asynccontextmanager
async def _mesh(deployment: Deployment | None, report: Callable[[str], None]) -> AsyncIterator[MeshAccess]:
    if deployment is not None:
        async with open_mesh_access(deployment) as mesh:
            yield mesh
        return
    with tempfile.TemporaryDirectory(prefix="spawnmesh-conformance-") as home:
        async with (
            open_stack(Path(home) / "mesh", report, runner_count=0) as stack,
            open_mesh_access(Deployment(stack.targets, stack.keys)) as mesh,
        ):
            yield mesh


async def _verdict(replay: Callable[[Case], Awaitable[CaseResult]], case: Case) -> CaseResult:
    if case.unknown:
        return CaseResult(
            f"not replayed: the case has what the replay does not know: {_printable(', '.join(case.unknown))}"
        )
    try:
        return await replay(case)
    except BadCase as error:
        return CaseResult(f"not replayed: {error}")
    except RecursionError:
        return CaseResult("not replayed: it is nested too deep")
    except MeshError as error:
        return CaseResult(f"came {error.reason}: {_printable(error.message)}")


def _name(case: Case) -> str:
    return _printable(case.case_id)


def _printable(text: str) -> str:
    """Return printable ASCII that cannot control a terminal."""
    return ascii(text)[1:-1]
