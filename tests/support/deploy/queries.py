"""Queries of Prometheus in parts."""

from collections.abc import Iterator
from typing import Any

import promql_parser as promql

from tests.support.deploy.registry import series

ADDED = {"namespace", "job", "component", "pod", "instance", "le"}
"""Labels that Prometheus and the ServiceMonitor add to every series."""

CLAIM = "persistentvolumeclaim"
OF_OTHERS = {
    "up": set[str](),
    "kubelet_volume_stats_available_bytes": {CLAIM},
    "kubelet_volume_stats_capacity_bytes": {CLAIM},
}
"""Series that Prometheus and the kubelet make, with their labels."""


def selectors(expression: Any) -> Iterator[Any]:
    """Yield every selector of series in the expression."""
    if isinstance(expression, promql.VectorSelector):
        yield expression
        return
    for part in ("lhs", "rhs", "expr", "vector_selector", "param"):
        inner = getattr(expression, part, None)
        if inner is not None and not isinstance(inner, str):
            yield from selectors(inner)
    for argument in getattr(expression, "args", None) or ():
        yield from selectors(argument)


def groupings(expression: Any) -> Iterator[tuple[set[str], list[str]]]:
    """Yield the labels of each `by`, and the series that it groups."""
    if isinstance(expression, promql.AggregateExpr) and expression.modifier is not None:
        yield set(expression.modifier.labels), [selector.name for selector in selectors(expression.expr)]
    for part in ("lhs", "rhs", "expr", "param"):
        inner = getattr(expression, part, None)
        if inner is not None and not isinstance(inner, str):
            yield from groupings(inner)
    for argument in getattr(expression, "args", None) or ():
        yield from groupings(argument)


def labels_of(name: str) -> set[str]:
    """Return the labels of the metric to which the series belongs. Recorded series have none."""
    if name in OF_OTHERS:
        return OF_OTHERS[name]
    metric = series().get(name)
    return set(metric.labels) if metric else set()
