"""`make soak MINUTES=m`: 60 % of the peak rate with rolling restarts, then the checks."""

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

import psutil

from tests.chaos.random_faults.checks import judge
from tests.chaos.random_faults.facts import Facts, sample_cooldowns
from tests.chaos.random_faults.faults import Faults
from tests.chaos.random_faults.field import ROOT, Field, open_field
from tests.chaos.random_faults.history import History
from tests.chaos.random_faults.load.calls import Client, secret_file
from tests.chaos.random_faults.load.everything import (
    PLAIN,
    TENANTS,
    open_client_mesh,
    prepare_tenants,
    watch_sessions_again,
)
from tests.chaos.random_faults.plan import REPLICATED
from tests.chaos.random_faults.report import print_verdict
from tests.chaos.random_faults.settling import settle
from tests.chaos.random_faults.trial import Verdict, examine_files

Report = Callable[[str], None]

_SHARE_OF_PEAK = 0.6
_CLIENTS = 16
_WARM_UP_SECONDS, _PEAK_SECONDS = 5.0, 20.0
_RESTARTS_SHARE = 2 / 3
_PAUSE_SECONDS = 5.0  # The preStop of the chart.
_SAMPLE_SECONDS = 5.0
_MOST_GROWTH_BYTES = 48 * 1024 * 1024
_MOST_GROWTH_SHARE = 0.25
_SETTLE_SECONDS = 300.0
_LEAST_SHARE_OF_TARGET = 0.9
_SHARE_WITH_FILE = 0.1
REQUIRED = (
    "I1  each run has one terminal state",
    "I3  objects and rows agree",
    "I4  transcripts are dense, and their hashes chain",
    "    claims of runs are exclusive",
    "I6  one request_id gives one resource",
    "I10 content is at rest in the bucket only",
    "    a new watch gives every stored event",
    "    no span lacks its parent",
    "    no accepted run failed",
    "    no call failed with an internal error, or was refused",
    "    no process ended by itself",
    "    the mesh came to rest",
)
"""The checks that the load of a soak has input for."""


@dataclass
class Soak:
    """The state of one soak. `memory` has the samples of each process of the last third."""

    field: Field
    client: Client
    faults: Faults
    report: Report
    memory: dict[str, list[int]] = field(default_factory=dict)

    async def peak(self) -> float:
        """Return the runs per second with clients that spawn and wait without a pause."""
        counted = 0

        async def work() -> None:
            nonlocal counted
            while True:
                await self.one_run()
                counted += 1

        workers = [asyncio.get_running_loop().create_task(work()) for _ in range(_CLIENTS)]
        await asyncio.sleep(_WARM_UP_SECONDS)
        counted = 0
        await asyncio.sleep(_PEAK_SECONDS)
        rate = counted / _PEAK_SECONDS
        for worker in workers:
            worker.cancel()
        for worker in workers:
            with suppress(asyncio.CancelledError):
                await worker
        return rate

    async def one_run(self) -> None:
        """Spawn, one session in ten with a file, and wait for the end."""
        request = self.client.spawn_request("Say something.")
        if self.client.random.random() < _SHARE_WITH_FILE:
            request.attachments.append(secret_file("0.txt", request.request_id))
        await self.client.wait(await self.client.spawn(request))

    async def hold(self, rate: float, seconds: float) -> float:
        """Begin `rate` runs each second for the time; return the rate at which runs ended."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        number = 0
        async with asyncio.TaskGroup() as runs:
            while loop.time() < began + seconds:
                runs.create_task(self.one_run())
                number += 1
                await asyncio.sleep(began + number / rate - loop.time())
        return number / (loop.time() - began)

    async def restart_everything(self, seconds: float) -> None:
        """Restart one process after the other until the time is over."""
        give_up = time.monotonic() + seconds
        while True:
            for name in (*REPLICATED, *(f"{name}-2" for name in REPLICATED)):
                if time.monotonic() > give_up:
                    return
                self.report(f"restart {name}")
                await self.faults.restart(name)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def sample_memory(self) -> None:
        """Sample the resident memory of each process. It never returns."""
        while True:
            for name, process in self.field.stack.processes.items():
                with suppress(psutil.NoSuchProcess):
                    self.memory.setdefault(name, []).append(psutil.Process(process.pid).memory_info().rss)
            await asyncio.sleep(_SAMPLE_SECONDS)


async def run_soak(folder: Path, seconds: float, report: Report) -> Verdict:
    """Soak, and check everything afterwards."""
    folder.mkdir(parents=True)
    facts = Facts()
    with (folder / "history.jsonl").open("w") as file:
        history = History(file)
        async with open_field(folder / "mesh", TENANTS, 60, report, is_linked=False) as field:
            await prepare_tenants(field)
            faults = Faults(field, report, history.now)
            async with asyncio.TaskGroup() as background, open_client_mesh(field, PLAIN) as mesh:
                watching = [
                    background.create_task(faults.keep_running()),
                    background.create_task(sample_cooldowns(field.stack.superuser_dsn, facts.cooldowns)),
                ]
                client = Client(PLAIN, mesh, history, Random(0), asyncio.Event())
                soak = Soak(field, client, faults, report)
                peak = await soak.peak()
                rate = _SHARE_OF_PEAK * peak
                report(f"peak: {peak:.1f} runs a second; holding {rate:.1f} for {seconds:.0f} s")
                reached = await _hold_and_restart(soak, rate, seconds)
                report(f"reached {reached:.1f} runs a second")
                await settle(field, facts, TENANTS, _SETTLE_SECONDS)
                await watch_sessions_again(field, history, 0, facts)
                for task in watching:
                    task.cancel()
            facts.calls, facts.ended = history.calls, faults.ended
            facts.watched_count = len(faults.watched)
        examine_files(folder / "mesh" / "data", facts, report)
    found = judge(facts, REQUIRED)
    found["    each call was answered"] = unanswered(facts)
    found["    the rate was held"] = [] if reached >= _LEAST_SHARE_OF_TARGET * rate else [f"{reached:.1f}"]
    found["    memory does not grow"] = growing(soak.memory)
    return Verdict(found, facts)


async def _hold_and_restart(soak: Soak, rate: float, seconds: float) -> float:
    restarts = seconds * _RESTARTS_SHARE
    async with asyncio.TaskGroup() as tasks:
        held = tasks.create_task(soak.hold(rate, seconds))
        await soak.restart_everything(restarts)
        soak.report("no more restarts; watching the memory")
        sampling = tasks.create_task(soak.sample_memory())
        reached = await held
        sampling.cancel()
    return reached


def unanswered(facts: Facts) -> list[str]:
    """Return the calls whose callers got no answer: a restart in order loses none."""
    return [
        f"{call.operation} at {call.start:.1f} s: {call.status} {call.reason}: {call.message}"
        for call in facts.calls
        if not call.is_ok and call.reason
    ]


def growing(memory: dict[str, list[int]]) -> list[str]:
    """Compare the medians of the first and of the last third of each process's samples."""
    if all(len(samples) < 3 for samples in memory.values()):
        return ["no process was sampled three times"]
    found = []
    for name, samples in memory.items():
        third = len(samples) // 3
        if third:
            first, last = median(samples[:third]), median(samples[-third:])
            if last - first > max(_MOST_GROWTH_BYTES, _MOST_GROWTH_SHARE * first):
                found.append(f"{name} grew from {first / 2**20:.0f} to {last / 2**20:.0f} MiB")
    return found


def main() -> int:
    """Return 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "chaos")
    given = parser.parse_args()
    folder = given.output / f"soak-{time.strftime('%Y%m%d-%H%M%S')}"
    began = time.monotonic()

    def report(line: str) -> None:
        print(f"[{time.monotonic() - began:6.1f}] {line}", flush=True)

    verdict = asyncio.run(run_soak(folder, 60 * given.minutes, report))
    print_verdict(verdict, report)
    if verdict.failed_count:
        print(f"history: {folder}/history.jsonl; logs and data: {folder}/mesh/data")
    else:
        shutil.rmtree(folder / "mesh")
    print(f"{len(verdict.found) - verdict.failed_count} passed, {verdict.failed_count} failed")
    return 1 if verdict.failed_count else 0


if __name__ == "__main__":
    sys.exit(main())
