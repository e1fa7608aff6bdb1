"""The reasons of ended runs are those that the contract of FailRun names, and the metrics know them."""

import re
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from spawnmesh_session.domain.runs import RUNNER_REASONS, RunOutcome, RunReason, RunState
from spawnmesh_session.metrics import RunMetrics

CONTRACT = Path(__file__).resolve().parents[3] / "protos/spawnmesh/session/v1/run_service.proto"


def test_reasons_of_runners_are_those_of_the_contract() -> None:
    [comment] = re.findall(
        r"those that only runners use:(.*?)string reason = ", CONTRACT.read_text(), re.DOTALL
    )
    assert set(re.findall(r"`([A-Z_]+)`", comment)) == RUNNER_REASONS


@pytest.mark.parametrize("reason", RunReason)
def test_metrics_count_the_run_with_its_reason(reason: RunReason) -> None:
    reader = InMemoryMetricReader()
    metrics = RunMetrics(MeterProvider([reader]).get_meter("test"))
    metrics.ended(RunOutcome(RunState.FAILED, error_reason=reason.value))
    data = reader.get_metrics_data()
    assert data is not None
    [metric] = data.resource_metrics[0].scope_metrics[0].metrics
    [point] = metric.data.data_points
    assert point.attributes is not None
    assert point.attributes["error.type"] == reason.value
