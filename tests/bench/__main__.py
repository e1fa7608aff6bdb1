"""`python -m tests.bench [--area AREA] [--out FILE] [--against FILE]` prints a table, and writes a
JSON line for each metric into the first file. Then it names the metrics that are slower than those
in the second file, which an earlier run wrote.

The exit code is 1 if something costs more than its bound allows, or an area cannot be measured. It
does not depend on the earlier run: on a busy machine, some metric is always slower.
"""

import argparse
import importlib
import sys
import tempfile
import traceback
from contextlib import AsyncExitStack
from pathlib import Path
from pkgutil import iter_modules

from rich.console import Console
from rich.table import Table
from spawnmesh_runtime.process import run_process

from tests.bench.comparison import TOLERANCE, read_metrics, slower_metrics
from tests.bench.harness import Bench, Metric

_NOT_AREAS = (
    "__main__",
    "comparison",
    "flooder",
    "floors",
    "harness",
    "live_provider",
    "live_watchers",
    "one_row",
    "operations",
    "profile",
)


def areas() -> list[str]:
    """Return the names of the modules of this package that measure something."""
    found = (module.name for module in iter_modules([str(Path(__file__).parent)]))
    return sorted(name for name in found if name not in _NOT_AREAS)


async def measure(names: list[str]) -> tuple[list[Metric], list[str]]:
    """Measure the areas one after the other on one mesh, and delete its data afterward.

    Returns the metrics, and the areas that failed: the others are measured all the same.
    """
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="spawnmesh-bench-", ignore_cleanup_errors=True) as folder:
        async with AsyncExitStack() as exits:
            bench = Bench(Path(folder) / "data", _tell, exits)
            for name in names:
                _tell(f"measuring {name}")
                try:
                    await importlib.import_module(f"tests.bench.{name}").run(bench)
                except Exception:  # noqa: BLE001 - it may be any defect of an area.
                    traceback.print_exc()
                    failed.append(name)
            return bench.metrics, failed


def show(metrics: list[Metric]) -> None:
    """Print a table on standard output."""
    table = Table(box=None, pad_edge=False)
    for column in ("metric", "p50 or value", "p95", "floor", "ratio", "bound", "samples"):
        table.add_column(column, justify="left" if column == "metric" else "right", no_wrap=True)
    for one in metrics:
        table.add_row(
            one.name,
            f"{one.value:.2f} {one.unit}",
            "" if one.p95 is None else f"{one.p95:.2f}",
            "" if one.floor is None else f"{one.floor:.2f}",
            "" if one.ratio is None else f"{one.ratio:.2f}",
            "" if one.bound is None else f"{one.bound:g}" + (" OVER" if one.is_over else ""),
            str(one.samples),
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def main() -> None:
    """Measure one area, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--area", choices=areas(), help="measure only this area")
    parser.add_argument("--out", type=Path, help="write a JSON line for each metric into this file")
    parser.add_argument("--against", type=Path, help="name what is slower than in this earlier --out file")
    given = parser.parse_args()
    earlier = read_metrics(given.against) if given.against else None
    metrics, failed = run_process(measure([given.area] if given.area else areas()))
    show(metrics)
    if given.out:
        given.out.write_text("".join(metric.line() + "\n" for metric in metrics))
    if earlier is not None:
        _compare(metrics, earlier, given.against)
    over = [metric.name for metric in metrics if metric.is_over]
    problems = [("not measured", failed), ("over their bounds", over)]
    if lines := [f"{problem}: {', '.join(names)}" for problem, names in problems if names]:
        sys.exit("\n".join(lines))


def _compare(metrics: list[Metric], earlier: dict[str, Metric], file: Path) -> None:
    slower = slower_metrics(metrics, earlier)
    compared = sum(metric.name in earlier for metric in metrics)
    print(f"{len(slower)} of {compared} metrics are slower than in {file} by more than {TOLERANCE:.0%}")
    for one in slower:
        print(f"  {one.line()}")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
