"""`python -m tests.simulation [--costs FILE]` says which part of a large mesh is busy first.

It measures the costs of a run on this machine, or reads them from the file if that exists, and
simulates the busiest hour of a day with 10,000 tenants and 1,000,000 sessions. Then it grows the
load until something is saturated, and names it.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from spawnmesh_devstack.stack import open_stack
from spawnmesh_runtime.process import run_process

from tests.bench.harness import AS_DEPLOYED
from tests.simulation.costs import Costs, measure_costs, read_costs
from tests.simulation.mesh import Deployment, Load, Result, SimulatedMesh

TENANT_COUNTS = (1, 10_000)
LOAD = Load(tenants=10_000, sessions_a_day=1_000_000, peak=3.0, turns=4.0, model_seconds=5.0, with_files=0.3)
SECONDS = 600.0
GROWING_SECONDS = 60.0
"""The simulated time of each step of the growing load."""
SEED = 1
BUSY = 0.8
"""A station that is busy for this part of the time is saturated: waits grow without measure."""
SLOTS_OF_A_RUNNER = 64
DATABASE_CORES = 16
SPARE = 1.5
"""Processes are provided for the load of the busiest hour times this."""


def deployment_for(costs: Costs, load: Load) -> Deployment:
    """Return a mesh whose processes are busy for two thirds of the time, with one database server."""
    seconds = {
        name: costs.run[name]
        + load.turns * costs.turn.get(name, 0)
        + load.with_files * costs.files.get(name, 0)
        for name in costs.run
    }
    held = (load.turns + 1) * load.model_seconds
    replicas = {
        name: max(2, round(load.rate * needed * SPARE + 0.5))
        for name, needed in seconds.items()
        if name != "postgres"
    }
    slots = load.rate * held * SPARE
    replicas["runner"] = max(replicas["runner"], round(slots / SLOTS_OF_A_RUNNER + 0.5))
    return Deployment(replicas, DATABASE_CORES, SLOTS_OF_A_RUNNER)


def first_saturated(deployment: Deployment, load: Load, costs: Costs) -> tuple[float, str, Result]:
    """Grow the load by a fifth until a station is saturated; the other stations grow with the load.

    Only the database and what it serializes stay as they are, since processes can be added.
    """
    factor = 1.0
    while True:
        grown = replace(
            deployment,
            replicas={name: round(count * factor + 0.5) for name, count in deployment.replicas.items()},
        )
        rate = replace(
            load, sessions_a_day=load.sessions_a_day * factor, tenants=round(load.tenants * factor)
        )
        result = SimulatedMesh(grown, rate, costs, seed=SEED).run(GROWING_SECONDS)
        name, busy = max(result.busy.items(), key=lambda one: one[1])
        if busy > BUSY:
            return factor, name, result
        factor *= 1.2


async def _measured(file: Path | None) -> Costs:
    if file is not None and file.exists():
        return read_costs(file)
    with tempfile.TemporaryDirectory(prefix="spawnmesh-simulation-", ignore_cleanup_errors=True) as folder:
        async with open_stack(
            Path(folder) / "data", _tell, environment=AS_DEPLOYED, model_pause_seconds=0.0
        ) as stack:
            _tell("measuring the costs of a run")
            costs = await measure_costs(stack, TENANT_COUNTS)
    if file is not None:
        costs.write(file)
    return costs


def _show(costs: Costs, deployment: Deployment, result: Result) -> None:
    table = Table("process", "run", "each turn", "three files", "processes", "busy", "wait p99", box=None)
    counts = {**deployment.replicas, "postgres": deployment.database_cores, "slots": deployment.slots}
    for name, count in counts.items():
        spent = [one.get(name) for one in (costs.run, costs.turn, costs.files)]
        table.add_row(
            name,
            *("" if seconds is None else f"{seconds * 1e3:.1f} ms" for seconds in spent),
            str(count),
            f"{result.busy[name]:.0%}",
            f"{result.wait_p99(name) * 1e3:.0f} ms",
        )
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    claims = ", ".join(
        f"{1e3 * seconds:.1f} ms with {count} tenants" for count, seconds in costs.claims.items()
    )
    console.print(f"commits: {costs.run_commits:.1f} for a run, {costs.turn_commits:.1f} for each turn")
    console.print(f"a claim that finds nothing: {claims}")


def main() -> None:
    """Measure, simulate, and print what is busy first."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--costs", type=Path, help="read the costs from this file, or write them to it")
    costs = run_process(_measured(parser.parse_args().costs))
    deployment = deployment_for(costs, LOAD)
    _tell(f"simulating {SECONDS / 60:.0f} minutes of the busiest hour: {LOAD.rate:.0f} sessions a second")
    _show(costs, deployment, SimulatedMesh(deployment, LOAD, costs, seed=SEED).run(SECONDS))
    factor, name, result = first_saturated(deployment, LOAD, costs)
    print(
        f"first bottleneck: {name}, busy for {result.busy[name]:.0%} of the time at {factor:.1f} times"
        f" the load ({LOAD.sessions_a_day * factor:,.0f} sessions a day)"
    )


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
