"""A runner among scripted peers: it reports which models failed, at no cost of the run."""

from collections import deque
from pathlib import Path

import pytest
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason
from spawnmesh_runner.loop import model_failures

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import ScriptedMesh, running_runner
from tests.support.waiting import eventually

LIMITED = generation_pb2.Attempt(
    number=1, model="scripted/zero", reason=generation_pb2.FAILOVER_REASON_RATE_LIMIT, http_status=429
)
BROKEN = MeshError(
    Reason.STREAM_BROKEN,
    "the answer broke off",
    facts={"transient": "true", "model": "scripted/one", "failover_reason": "TIMEOUT"},
)


async def test_failed_attempts_and_broken_streams_are_reported_in_order(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.model_failures.before_answer = (LIMITED,)
    mesh.answers.extend([BROKEN, calling(("c1", "list_files", "{}")), saying("Done.")])
    mesh.refusals["ReportModelFailures"] = deque([unavailable("session")])
    mesh.queue_run(tools=("list_files",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
        await eventually(lambda: len(mesh.model_failures.failures) == 4)
    limited = ("scripted/zero", "RATE_LIMIT", 429)
    assert mesh.model_failures.failures == [
        (1, *limited), (2, "scripted/one", "TIMEOUT", 0), (3, *limited), (4, *limited),
    ]  # fmt: skip


async def test_an_answer_is_offered_behind_the_failures_before_it(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run may tell nothing more when it has ended."""
    monkeypatch.setattr(model_failures, "_LAST_CALL_SECONDS", 60.0)  # The machine may be slow.
    mesh.model_failures.before_answer, mesh.model_failures.seconds = (LIMITED,), 0.5
    mesh.answers.append(saying("Done."))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    assert mesh.model_failures.early_count == 1


async def test_a_refused_report_delays_no_answer(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.model_failures.before_answer = (LIMITED,)
    mesh.answers.append(saying("Done."))
    mesh.refusals["ReportModelFailures"] = deque([MeshError(Reason.RUN_STATE, "no")])
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    assert mesh.model_failures.failures == []


async def test_a_further_runner_goes_on_behind_the_failures_that_are_known(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.model_failures.before_answer = (LIMITED,)
    mesh.answers.append(saying("Done."))
    mesh.model_failures.known_count = 7
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
        await eventually(lambda: mesh.model_failures.failures)
    assert mesh.model_failures.failures == [(8, "scripted/zero", "RATE_LIMIT", 429)]
