"""The table of all metrics in `docs/reference/metrics.md`, made from the registry.

`python -m tests.support.deploy.metric_table` writes it.
"""

from collections.abc import Iterator

from tests.support.deploy.registry import RegisteredMetric, Values, groups, registry, series
from tests.support.deploy.rendering import ROOT

PAGE = ROOT / "docs" / "reference" / "metrics.md"
_FEW = 5
BEGIN, END = "<!-- metrics: begin -->\n", "<!-- metrics: end -->"


def updated(page: str) -> str:
    """Return the page with the current table. Raises ValueError if it lacks the markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page lacks the markers of the table")
    return f"{before}{begin}\n{''.join(_lines())}\n{end}{after}"


def _lines() -> Iterator[str]:
    yield "| metric | in Prometheus | attributes | recorded by | what it says |\n|---|---|---|---|---|\n"
    for metric in sorted(registry().values(), key=lambda one: one.name):
        labels = ", ".join(f"`{label}`{_values(values)}" for label, values in metric.labels.items())
        unit = f" ({metric.unit})" if metric.unit and "{" not in metric.unit else ""
        name, shown = f"`{metric.name}`{unit}", _prometheus_name(metric)
        yield f"| {name} | `{shown}` | {labels} | {_recorders(metric)} | {metric.description} |\n"


def _values(values: Values) -> str:
    """Return how many values there are, or which, if they are few."""
    if values.exact is None:
        return f" (at most {values.count})"
    if len(values.exact) > _FEW:
        return f" ({values.count})"
    return f" ({', '.join(sorted(values.exact))})"


def _recorders(metric: RegisteredMetric) -> str:
    names = [name for name, members in groups().items() if metric.components == members]
    return names[0] if names else ", ".join(sorted(metric.components))


def _prometheus_name(metric: RegisteredMetric) -> str:
    """Return the name that Prometheus shows; of a histogram, the one without suffix."""
    names = [name for name, of in series().items() if of == metric and not name.endswith("_created")]
    shortest = min(names, key=len)
    return shortest.removesuffix("_sum") if metric.kind == "histogram" else shortest


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
