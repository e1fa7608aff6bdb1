"""`make chaos SEED=n MINUTES=m`: random faults from a seed under load, and the checks.

`make outages SECONDS=s`: one outage after the other instead, and whether spawns were served in time
meanwhile.
"""

import argparse
import asyncio
import shutil
import sys
import time
from pathlib import Path

from spawnmesh_devstack.postgres import Postgres

from tests.chaos.random_faults.field import ROOT
from tests.chaos.random_faults.plan import NODES, make_outages, make_plan
from tests.chaos.random_faults.report import print_verdict
from tests.chaos.random_faults.spawn_times import bad_spawns, spawn_times, unanswered_spawns
from tests.chaos.random_faults.trial import run_trial
from tests.support.citus.servers import citus_postgres

_OUTAGE_SLOWNESS = 3.0
"""The times of spawns are judged, so the load leaves half of two processors idle."""
_IN_TIME = "    spawns are answered or refused in time"
_ANSWERED = "    a spawn that is refused gets a session when it is repeated"


def main() -> int:
    """Return 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--outage-seconds", type=float)
    parser.add_argument("--only", default="", help="the beginning of the outages' kind and target")
    parser.add_argument("--citus", action="store_true", help="store everything on a cluster of three nodes")
    parser.add_argument("--settle-seconds", type=float, default=600.0)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "chaos")
    given = parser.parse_args()
    outages = given.outage_seconds
    nodes = NODES if given.citus else ()
    plan = make_outages(outages, given.only) if outages else make_plan(given.seed, 60 * given.minutes, nodes)
    if not plan:
        parser.error(f"no outage begins with {given.only!r}")
    name = "outages" if outages else f"seed-{given.seed}"
    folder = given.output / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    began = time.monotonic()

    def report(line: str) -> None:
        print(f"[{time.monotonic() - began:6.1f}] {line}", flush=True)

    verdict = asyncio.run(
        run_trial(
            folder,
            plan,
            seed=given.seed,
            settle_seconds=given.settle_seconds,
            report=report,
            new_postgres=citus_postgres(3) if given.citus else Postgres,
            slowness=_OUTAGE_SLOWNESS if outages else 1.0,
        )
    )
    if outages:
        verdict.found[_IN_TIME] = bad_spawns(verdict.facts.faults, verdict.facts.calls)
        verdict.found[_ANSWERED] = unanswered_spawns(verdict.facts.calls)
    print_verdict(verdict, report)
    for line in spawn_times(verdict.facts.faults, verdict.facts.calls) if outages else ():
        report(line)
    if verdict.failed_count:
        print(f"history: {folder}/history.jsonl; logs and data: {folder}/mesh/data")
        again = (
            f"outages SECONDS={outages:g}{f' ONLY={given.only!r}' if given.only else ''}"
            if outages
            else f"chaos SEED={given.seed} MINUTES={given.minutes:g}"
        )
        print(f"the same faults again: make {again}{' CITUS=1' if given.citus else ''}")
    else:
        shutil.rmtree(folder / "mesh")
    print(f"{len(verdict.found) - verdict.failed_count} passed, {verdict.failed_count} failed")
    return 1 if verdict.failed_count else 0


if __name__ == "__main__":
    sys.exit(main())
