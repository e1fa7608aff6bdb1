"""One run of random faults: a mesh, its load, the faults, the rest, and the checks."""

import asyncio
import base64
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spawnmesh_devstack.postgres import NewPostgres, Postgres
from spawnmesh_devstack.processes import Execute, execute
from spawnmesh_devstack.span_file import load_all_spans
from spawnmesh_devstack.traces import orphans

from tests.chaos.random_faults.checks import judge
from tests.chaos.random_faults.facts import Facts, files_at, find_leaks, sample_cooldowns
from tests.chaos.random_faults.faults import Faults
from tests.chaos.random_faults.field import open_field
from tests.chaos.random_faults.history import History
from tests.chaos.random_faults.load.calls import CONTENT
from tests.chaos.random_faults.load.everything import (
    TENANTS,
    Load,
    is_in_full_swing,
    prepare_tenants,
    watch_sessions_again,
)
from tests.chaos.random_faults.plan import Fault, FaultKind
from tests.chaos.random_faults.receiver import open_receiver
from tests.chaos.random_faults.settling import settle

Report = Callable[[str], None]

_GRACE_MARGIN_SECONDS = 15
_WARM_UP_SECONDS = 60.0  # At most: on a busy machine the load needs time to begin.
_LOOK_SECONDS = 0.1
_LAST_CALLS_SECONDS = 120.0


@dataclass(frozen=True)
class Verdict:
    """The findings of each check, by its name, and the facts that were checked."""

    found: dict[str, list[str]]
    facts: Facts

    @property
    def failed_count(self) -> int:
        """The number of checks that found something."""
        return sum(bool(lines) for lines in self.found.values())


async def run_trial(
    folder: Path,
    plan: list[Fault],
    *,
    seed: int,
    settle_seconds: float,
    report: Report,
    execute: Execute = execute,
    new_postgres: NewPostgres = Postgres,
    slowness: float = 1.0,
) -> Verdict:
    """Follow the plan under the load of the seed, and check everything afterwards.

    `folder` is new; it keeps the history, the logs and the data. `slowness` is that of the load.
    """
    folder.mkdir(parents=True)
    window_seconds = max((fault.end_seconds for fault in plan), default=0.0)
    grace = int(max((fault.seconds for fault in plan), default=0.0)) + _GRACE_MARGIN_SECONDS
    facts = Facts()
    report(f"seed {seed}: {len(plan)} faults in {window_seconds:.0f} s; everything is kept in {folder}")
    with (folder / "history.jsonl").open("w") as file:
        history = History(file)
        async with (
            open_receiver(facts.received) as receiver,
            open_field(
                folder / "mesh", TENANTS, grace, report, execute=execute, new_postgres=new_postgres
            ) as field,
        ):
            await prepare_tenants(field, receiver)
            load = Load(field, history, seed, asyncio.Event(), folder / "files", slowness)
            faults = Faults(field, report, history.now)
            if field.disk is None:
                left = [fault for fault in plan if fault.kind is not FaultKind.FULL]
                report(f"no right to mount a disk here: {len(plan) - len(left)} faults are left out")
                plan = left
            async with asyncio.TaskGroup() as background:
                watching = [
                    background.create_task(sample_cooldowns(field.stack.superuser_dsn, facts.cooldowns)),
                    background.create_task(faults.keep_running()),
                    background.create_task(load.run_harnesses()),
                    background.create_task(load.decide()),
                ]
                has_ended = await _under_load(load, faults, plan, report)
                report("the faults are over; waiting until the mesh is at rest")
                seconds = await settle(field, facts, TENANTS, settle_seconds)
                report(f"waited {seconds:.1f} s for rest")
                if not has_ended:
                    facts.unsettled.append("clients still wait for an answer")
                await watch_sessions_again(field, history, seed, facts)
                for task in watching:
                    task.cancel()
            facts.calls, facts.faults, facts.ended = history.calls, faults.applied, faults.ended
            facts.watched_count = len(faults.watched)
            await asyncio.sleep(0)
        examine_files(folder / "mesh" / "data", facts, report)
    return Verdict(judge(facts), facts)


def examine_files(data: Path, facts: Facts, report: Report) -> None:
    """Search the files of a mesh that is stopped for content that was handed over, and its spans
    for those without their parent.
    """
    began = time.monotonic()
    paths = [data / name for name in ("logs", "postgres", "spans", "traces.otlp")]
    files = files_at([*paths, *data.glob("citus/worker-*")])
    facts.scanned_count, facts.leaks = len(files), find_leaks(files, _needles())
    spans = load_all_spans(data / "traces.otlp")
    facts.span_count = len(spans)
    facts.orphans = [f"{span.service} {span.name} of trace {span.trace_id}" for span in orphans(spans)]
    report(f"looked for content at rest, and for spans, in {time.monotonic() - began:.1f} s")


async def _under_load(load: Load, faults: Faults, plan: list[Fault], report: Report) -> bool:
    """Load the mesh while the plan is followed. Return whether all clients got their answers.

    The faults begin when the load is in full swing, so that it leaves something for each check.
    """
    running = asyncio.get_running_loop().create_task(load.run())
    try:
        give_up = time.monotonic() + _WARM_UP_SECONDS
        while not is_in_full_swing(load.history.calls) and time.monotonic() < give_up:
            await asyncio.sleep(_LOOK_SECONDS)
        await faults.follow(plan)
        load.stop.set()
        report("the last calls of the load end")
        ended, _ = await asyncio.wait([running], timeout=_LAST_CALLS_SECONDS)
        return bool(ended)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def _needles() -> list[bytes]:
    """Return the content as it is, and as base64 has it, at the beginning of a file."""
    whole = len(CONTENT) // 3 * 3
    return [CONTENT.encode(), base64.b64encode(CONTENT[:whole].encode())]
