"""A run of the benchmarks is compared with an earlier one."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.comparison import read_metrics, slower_metrics
from tests.bench.harness import Metric

LATENCY = Metric("session.spawn", 10.0, "ms", 5.0, 2.0, 100, 12.0)
RATE = Metric("nodes.append.rate", 100.0, "1/s", None, None, 3)
EARLIER = {metric.name: metric for metric in (LATENCY, RATE)}


@pytest.mark.parametrize(
    ("metric", "share"),
    [
        (replace(LATENCY, ratio=2.2), 0.1),
        (replace(RATE, value=80.0), 0.25),
        (replace(LATENCY, value=20.0, ratio=None), 1.0),  # Without a floor the values count.
    ],
)
def test_metric_that_is_slower_by_more_than_the_tolerance_is_named(metric: Metric, share: float) -> None:
    [slower] = slower_metrics([metric], EARLIER)
    assert slower.name == metric.name
    assert slower.share == pytest.approx(share)
    assert f"{share:.0%} slower" in slower.line()


@pytest.mark.parametrize(
    "metric",
    [
        replace(LATENCY, ratio=2.09),
        replace(LATENCY, ratio=1.0),
        replace(LATENCY, value=20.0, floor=10.0),  # A slower machine: the ratio is the same.
        replace(RATE, value=96.0),
        replace(RATE, value=200.0),
        replace(LATENCY, name="session.new", ratio=9.0),
        replace(RATE, value=1.0, unit=""),
    ],
)
def test_metric_that_is_as_fast_or_cannot_be_compared_is_not_named(metric: Metric) -> None:
    assert slower_metrics([metric], EARLIER) == []


def test_slowest_metric_is_the_first() -> None:
    slower = slower_metrics([replace(LATENCY, ratio=2.2), replace(RATE, value=50.0)], EARLIER)
    assert [one.name for one in slower] == ["nodes.append.rate", "session.spawn"]


def test_metrics_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "before.jsonl"
    file.write_text("".join(metric.line() + "\n" for metric in EARLIER.values()))
    assert read_metrics(file) == EARLIER
