"""Compares the metrics of a run with those of an earlier run."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.bench.harness import Metric

TOLERANCE = 0.05
"""The share by which a metric may be slower without being named."""
_TIMES = frozenset({"ms", "s"})
_RATES = frozenset({"1/s", "MiB/s"})


@dataclass(frozen=True, slots=True)
class SlowerMetric:
    """A metric that is slower now by this share of what it was. Both are ratios if `has_floor`."""

    name: str
    before: float
    now: float
    share: float
    has_floor: bool

    def line(self) -> str:
        """Return one line for people."""
        kind = " x its floor" if self.has_floor else ""
        return (
            f"{self.name}: {self.before:.2f}{kind} before, {self.now:.2f}{kind} now, {self.share:.0%} slower"
        )


def read_metrics(file: Path) -> dict[str, Metric]:
    """Return the metrics that a run wrote into the file, by their names."""
    metrics = (Metric(**json.loads(line)) for line in file.read_text().splitlines() if line)
    return {metric.name: metric for metric in metrics}


def slower_metrics(metrics: Iterable[Metric], earlier: dict[str, Metric]) -> list[SlowerMetric]:
    """Return the metrics that are slower than earlier by more than TOLERANCE, the slowest first.

    A time is slower if it is longer, and a rate if it is lower. Ratios to floors are compared where
    both runs have them, because machines differ; otherwise the values are. A metric that is neither
    a time nor a rate, or that one of the runs does not have, is left out.
    """
    found = []
    for metric in metrics:
        old = earlier.get(metric.name)
        if old is None or old.unit != metric.unit or metric.unit not in _TIMES | _RATES:
            continue
        has_floor = old.ratio is not None and metric.ratio is not None
        before, now = (one.ratio if has_floor else one.value for one in (old, metric))
        if not before or not now:
            continue
        share = (now / before if metric.unit in _TIMES else before / now) - 1
        if share > TOLERANCE:
            found.append(SlowerMetric(metric.name, before, now, share, has_floor))
    return sorted(found, key=lambda one: one.share, reverse=True)
