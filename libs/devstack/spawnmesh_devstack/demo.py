"""The demo: the main job of the mesh on real files, through every service, with its proof."""

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

from rich.console import Console
from spawnmesh.session.v1.session_pb2 import Session
from spawnmesh_core.spans import Span

from spawnmesh_devstack import demo_report
from spawnmesh_devstack.demo_agents import TASK, profiles, with_approval, with_published_figures
from spawnmesh_devstack.demo_budget import first_budget
from spawnmesh_devstack.demo_document import (
    Check,
    Document,
    common_checks,
    document,
    receipt_of,
    story_checks,
    with_checks,
)
from spawnmesh_devstack.demo_evidence import leftovers
from spawnmesh_devstack.demo_files import PICTURE, TABLE, TEXT, make_files
from spawnmesh_devstack.demo_job import Done, Job, delete_family, deliveries, do_job
from spawnmesh_devstack.demo_small import make_note, small_checks, small_job
from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.models import SCRIPTED_FLAKY, Choice, ModelKind, choose
from spawnmesh_devstack.span_file import load_spans
from spawnmesh_devstack.thinking import open_thinking_stack

_SCRIPTED_SECONDS = 90.0
_REAL_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A job and the checks of its outcome."""

    job: Job
    judge: Callable[[Document, Done], list[Check]]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The complete document, and the names of the required checks that failed."""

    report: Document
    failed: Sequence[str]


async def run_demo(
    console: Console, *, model: str | None, environment: Mapping[str, str], quiet: bool
) -> DemoResult:
    """Start a mesh, do the job, print it unless `quiet`, and stop the mesh.

    Raises StackError if the job could not be done. In that case, and if a check fails, the logs are
    kept and their path is printed.
    """
    home = Path(tempfile.mkdtemp(prefix="spawnmesh-demo-"))
    keep = False
    try:
        report = await _run(console, home, model, environment, quiet=quiet)
        failed = [check["name"] for check in report["checks"] if check["required"] and not check["passed"]]
        keep = bool(failed)
    except StackError:
        keep = True
        raise
    finally:
        logs = home / "mesh" / "logs"
        if keep and logs.exists():
            console.print(f"the logs are in {logs}", soft_wrap=True)
        else:
            shutil.rmtree(home)
    return DemoResult(report, failed)


async def _run(
    console: Console, home: Path, model: str | None, environment: Mapping[str, str], *, quiet: bool
) -> Document:
    started = time.monotonic()
    choice = await choose(environment, model)
    console.print(f"The agents think with {choice.description}.")
    plan = (
        _small(home / "files", choice) if choice.kind is ModelKind.SMOLLM2 else _story(home / "files", choice)
    )
    tenant_id = f"demo-{SystemRandom().getrandbits(40):x}"

    def report_progress(line: str) -> None:
        console.print(f"{time.monotonic() - started:5.1f} s  {line}", style="dim", highlight=False)

    def spawned(session: Session) -> None:
        report_progress(f"{session.agent_id} spawned, with {session.receipt.count} files")
        if not quiet:
            demo_report.show_receipt(console, receipt_of(session))

    async with open_thinking_stack(home / "mesh", report_progress, choice) as stack:
        done = await do_job(stack, tenant_id, plan.job, spawned)
        report_progress("the job is done; waiting for what comes after")
        # Runs leave nothing but what they published, and that is deleted with its sessions.
        files = {file.sha256 for file in done.published}
        kept = await leftovers(stack, tenant_id, kept_files=len(files))
        told = await deliveries(stack, tenant_id)
        await delete_family(stack, tenant_id, done.parent.session_id)
        left = await leftovers(stack, tenant_id)
        pids = stack.pids
    report_progress("the mesh is stopped")
    left = left.with_processes(pids)
    spans = load_spans(
        stack.traces_file, done.parent.trace_id
    )  # Complete now: a process sends its spans before it ends.
    report = document(done, told, spans, kept, left, model=choice.name)
    checks = [*plan.judge(report, done), *common_checks(report)]
    report = with_checks(report, checks, time.monotonic() - started)
    if not quiet:
        _show(console, report, done, spans)
    return report


def _story(files: Path, choice: Choice) -> Plan:
    """Return the full story: the coordinator, its child and its grandchild."""
    scripted = choice.kind is ModelKind.SCRIPTED
    truth = make_files(files, SystemRandom().getrandbits(32), small=not scripted)
    timeout_seconds = _SCRIPTED_SECONDS if scripted else _REAL_SECONDS
    paths = [files / name for name in (TABLE, TEXT, PICTURE)]
    agents = with_published_figures(with_approval(profiles([SCRIPTED_FLAKY, choice.name])))
    return Plan(
        job=Job(agents, TASK, paths, timeout_seconds, first_budget()),
        judge=lambda report, _: story_checks(report, files, truth, scripted=scripted),
    )


def _small(files: Path, choice: Choice) -> Plan:
    """Return the part that a small model can do."""
    password = make_note(files, SystemRandom().getrandbits(32))
    return Plan(
        job=small_job(files, choice),
        judge=lambda report, done: small_checks(
            report, done.transcripts[done.parent.session_id], password, choice
        ),
    )


def _show(console: Console, report: Document, done: Done, spans: Sequence[Span]) -> None:
    demo_report.show_sessions(console, report)
    demo_report.show_published(console, report)
    parent = done.parent
    title = f"Transcript of the {parent.agent_id}, as it is stored"
    demo_report.show_transcript(console, title, done.transcripts[parent.session_id])
    demo_report.show_attempts(console, report)
    demo_report.show_trace(console, report, spans)
    demo_report.show_end(console, report)
