"""Replay a file of cases and report the result."""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from spawnmesh_core.errors import MeshError

from spawnmesh_devstack.conformance.areas import AREAS
from spawnmesh_devstack.conformance.cases import BadCase, Case, CaseResult, read_cases
from spawnmesh_devstack.conformance.mesh import MeshAccess, find_endpoints, open_mesh_access
from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.stack import open_stack


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


async def replay_file(
    area: str, file: Path, *, mesh_dir: Path | None = None, report: Callable[[str], None]
) -> Replayed:
    """Replay the file through the mesh that runs on the directory; without a directory, through a
    mesh that is started for it.

    Raises StackError for an unknown area, a file without cases, and a mesh that is not running.
    """
    if area not in AREAS:
        raise StackError(f"there is no area {area!a}; there are {', '.join(sorted(AREAS))}")
    cases = read_cases(file)
    async with _mesh(mesh_dir, report) as mesh:
        return await replay_cases(lambda case: AREAS[area](mesh, case), cases)


async def replay_cases(replay: Callable[[Case], Awaitable[CaseResult]], cases: Sequence[Case]) -> Replayed:
    """Replay one case after the other. A case that cannot be replayed, or that raises, counts as
    failed with the cause.
    """
    return Replayed([(case, await _verdict(replay, case)) for case in cases])


@asynccontextmanager
async def _mesh(mesh_dir: Path | None, report: Callable[[str], None]) -> AsyncIterator[MeshAccess]:
    if mesh_dir is not None:
        targets, keys = find_endpoints(mesh_dir)
        async with open_mesh_access(targets, keys) as mesh:
            yield mesh
        return
    with tempfile.TemporaryDirectory(prefix="spawnmesh-conformance-") as home:
        async with (
            open_stack(Path(home) / "mesh", report, runner_count=0) as stack,
            open_mesh_access(stack.targets, stack.keys) as mesh,
        ):
            yield mesh


async def _verdict(replay: Callable[[Case], Awaitable[CaseResult]], case: Case) -> CaseResult:
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
