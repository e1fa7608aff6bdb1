"""The outcomes that hooks learn are the ends of runs, and the failure of a spawn."""

from spawnmesh.hook.v1.end_outcome_pb2 import EndOutcome
from spawnmesh_session.domain.runs import TERMINAL_RUN_STATES
from spawnmesh_session.jobs.run_end_events import render_outcome
from spawnmesh_session.operations.follow_up_jobs import SPAWN_FAILED


def test_contract_has_every_outcome_and_no_other() -> None:
    outcomes = [*(state.lower() for state in TERMINAL_RUN_STATES), SPAWN_FAILED]
    rendered = {render_outcome(outcome) for outcome in outcomes}
    assert rendered == {value for value in EndOutcome.values() if value}
