"""Forty seconds of random faults under load breaks no invariant, and fails no accepted run."""

import tempfile
from pathlib import Path

import pytest

from tests.chaos.random_faults.plan import make_plan
from tests.chaos.random_faults.report import summary_of
from tests.chaos.random_faults.trial import run_trial
from tests.support.forking import ForkServer

# The plan has a fault of every kind, PostgreSQL, S3 and the plugin among the targets, and an outage
# of a service that is longer than a runner waits for it: see tests/unit/chaos/test_plan.py.
SEED = 7916
WINDOW_SECONDS = 42.0
SETTLE_SECONDS = 240.0


@pytest.mark.timeout(600)
async def test_mesh_under_random_faults_keeps_every_invariant(fork_server: ForkServer) -> None:
    lines: list[str] = []
    # PostgreSQL runs as another account, and cannot pass pytest's own directory.
    with tempfile.TemporaryDirectory(prefix="spawnmesh-chaos-") as folder:
        plan = make_plan(SEED, WINDOW_SECONDS)
        verdict = await run_trial(
            Path(folder) / "run",
            plan,
            seed=SEED,
            settle_seconds=SETTLE_SECONDS,
            report=lines.append,
            execute=fork_server.execute,
        )
    print("\n".join(lines))
    failed = {name.strip(): found[:5] for name, found in verdict.found.items() if found}
    assert failed == {}, f"{summary_of(verdict.facts)}; make chaos SEED={SEED} keeps the data"
    calls = {call.operation for call in verdict.facts.calls if call.is_ok}
    assert {"spawn", "wait", "send", "kill", "append", "acquire", "claim", "harness", "watch"} <= calls
