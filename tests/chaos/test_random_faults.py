"""Forty seconds of random faults under load breaks no invariant, and fails no accepted run."""

import tempfile
from pathlib import Path

import pytest
from spawnmesh_devstack.forks import ForkServer

from tests.chaos.random_faults.load.everything import is_in_full_swing
from tests.chaos.random_faults.plan import SHORT_SEED, SHORT_WINDOW_SECONDS, make_plan
from tests.chaos.random_faults.report import summary_of
from tests.chaos.random_faults.trial import run_trial

SETTLE_SECONDS = 240.0


@pytest.mark.timeout(600)
async def test_mesh_under_random_faults_keeps_every_invariant(fork_server: ForkServer) -> None:
    lines: list[str] = []
    # PostgreSQL runs as another account, and cannot pass pytest's own directory.
    with tempfile.TemporaryDirectory(prefix="spawnmesh-chaos-") as folder:
        plan = make_plan(SHORT_SEED, SHORT_WINDOW_SECONDS)
        verdict = await run_trial(
            Path(folder) / "run",
            plan,
            seed=SHORT_SEED,
            settle_seconds=SETTLE_SECONDS,
            report=lines.append,
            execute=fork_server.execute,
        )
    print("\n".join(lines))
    failed = {name.strip(): found[:5] for name, found in verdict.found.items() if found}
    assert failed == {}, (
        f"{summary_of(verdict.facts)}; make chaos SEED={SHORT_SEED} MINUTES={SHORT_WINDOW_SECONDS / 60:g} keeps the data"
    )
    assert is_in_full_swing(verdict.facts.calls)
