"""The table of all metrics in `docs/howto/telemetry.md`, made from the sources.

`python -m tests.support.deploy.metric_table` writes it.
"""

from collections.abc import Iterator

from tests.support.deploy.instruments import Instrument, instruments, series
from tests.support.deploy.rendering import ROOT

PAGE = ROOT / "docs" / "howto" / "telemetry.md"
BEGIN, END = "<!-- metrics: begin -->\n", "<!-- metrics: end -->"


def updated(page: str) -> str:
    """Return the page with the current table. Raises ValueError if it lacks the markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page lacks the markers of the table")
    return f"{before}{begin}\n{''.join(_lines())}\n{end}{after}"


def _lines() -> Iterator[str]:
    yield "| metric | in Prometheus | attributes | what it says |\n|---|---|---|---|\n"
    for instrument in sorted(instruments(), key=lambda one: one.name):
        labels = ", ".join(f"`{label}`" for label in sorted(instrument.labels))
        unit = f" ({instrument.unit})" if instrument.unit and "{" not in instrument.unit else ""
        name = f"`{instrument.name}`{unit}"
        yield f"| {name} | `{_prometheus_name(instrument)}` | {labels} | {instrument.description} |\n"


def _prometheus_name(instrument: Instrument) -> str:
    """Return the name that Prometheus shows; of a histogram, the one without suffix."""
    names = [name for name, of in series().items() if of == instrument and not name.endswith("_created")]
    return min(names, key=len).removesuffix("_sum").removesuffix("_count").removesuffix("_bucket")


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
