"""The parts of a dashboard, as the pages of this package state them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Unit(Enum):
    """The units of values, by their names in Grafana."""

    SECONDS = "s"
    BYTES = "bytes"
    BYTES_PER_SECOND = "Bps"
    PER_SECOND = "ops"
    SHARE = "percentunit"
    COUNT = "short"


class Shape(Enum):
    """The ways to draw a panel."""

    LINES = "lines"
    STACKED = "stacked lines"
    NUMBER = "the newest value"


@dataclass(frozen=True, slots=True)
class Query:
    """A query of Prometheus. With `exemplars`, Grafana draws traces of single calls beside it."""

    expression: str
    legend: str
    exemplars: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """The values from which on a number is yellow, and red. A smaller one is worse if they fall."""

    yellow: float
    red: float


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel, `width` of 24 wide. Its description says how to read it, and where to go on."""

    title: str
    description: str
    queries: Sequence[Query]
    unit: Unit = Unit.COUNT
    shape: Shape = Shape.LINES
    width: int = 8
    limits: Limits | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that together answer the question in the title."""

    question: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice of the reader among the values of a label; all of them at first."""

    name: str
    label: str
    series: str
    of_label: str


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard. `name` is the name of its file, and its id in Grafana."""

    name: str
    title: str
    description: str
    rows: Sequence[Row]
    variables: Sequence[Variable] = ()


def selector(series: str, *matchers: str) -> str:
    """Return the series of the chosen namespace that have these labels."""
    labels = ", ".join(('namespace="$namespace"', *matchers))
    return f"{series}{{{labels}}}"


OLDEST = f"max by (spawnmesh_session_runtime) ({selector('spawnmesh_session_queue_oldest_age_seconds')})"
"""The age of the oldest run that can be claimed, by the runtime for which it waits."""


def rate(series: str, *matchers: str) -> str:
    """Return the increase in a second."""
    return f"rate({selector(series, *matchers)}[$__rate_interval])"


def increase(series: str, *matchers: str, window: str = "1h") -> str:
    """Return the increase in the window."""
    return f"increase({selector(series, *matchers)}[{window}])"


def total(expression: str, *labels: str) -> str:
    """Return the sum for each combination of the labels."""
    return f"sum by ({', '.join(labels)}) ({expression})" if labels else f"sum({expression})"


def top(count: int, expression: str) -> str:
    """Return the largest values."""
    return f"topk({count}, {expression})"


def share(part: str, whole: str) -> str:
    """Return the part of the whole, which is 0 where there is no series of the part."""
    return f"({part} or 0 * {whole}) / {whole}"


def quantile(portion: float, histogram: str, *matchers: str, by: Sequence[str] = ()) -> str:
    """Return the value that this portion of the measurements is below."""
    buckets = total(rate(f"{histogram}_bucket", *matchers), "le", *by)
    return f"histogram_quantile({portion:g}, {buckets})"


def quantiles(histogram: str, *matchers: str) -> Sequence[Query]:
    """Return the median, the 95th and the 99th percentile, with exemplars of the last."""
    return (
        Query(quantile(0.5, histogram, *matchers), "p50"),
        Query(quantile(0.95, histogram, *matchers), "p95"),
        Query(quantile(0.99, histogram, *matchers), "p99", exemplars=True),
    )
