"""The demo: the main job of the mesh on real files, through every service, with its proof."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import TypeVar

from rich.console import Console
from rich.text import Text
from spawnmesh.hook.v1.delivery_pb2 import DELIVERY_DECISION_TOLD, Delivery
from spawnmesh_client.client import connect
from spawnmesh_core.errors import MeshError
from spawnmesh_core.spans import Span

from spawnmesh_devstack import demo_summary, traces
from spawnmesh_devstack.console import sign_in_link
from spawnmesh_devstack.demo_agents import TASK, profiles, with_approval, with_published_figures
from spawnmesh_devstack.demo_budget import first_budget
from spawnmesh_devstack.demo_document import (
    Check,
    Document,
    common_checks,
    document,
    story_checks,
    with_checks,
)
from spawnmesh_devstack.demo_evidence import DEPLOYABLES, leftovers
from spawnmesh_devstack.demo_files import PICTURE, TABLE, TEXT, make_files
from spawnmesh_devstack.demo_job import Done, Job, delete_family, deliveries, do_job, pause_plugin
from spawnmesh_devstack.demo_small import make_note, small_checks, small_job
from spawnmesh_devstack.demo_stage import DemoStage, Shown, open_stage
from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.models import SCRIPTED_AGENT, SCRIPTED_FLAKY, SMOLLM2, Choice, ModelKind, choose
from spawnmesh_devstack.running_mesh import MeshOfUp, open_running_mesh
from spawnmesh_devstack.span_file import load_spans
from spawnmesh_devstack.thinking import open_thinking_stack
from spawnmesh_devstack.typed_command import typed_command
from spawnmesh_devstack.up import TENANT

_SCRIPTED_SECONDS = 90.0
_REAL_SECONDS = 600.0
_POLL_SECONDS = 0.2
_SETTLE_SECONDS = 30.0
_TUTORIAL = Path("docs/tutorial.md")

T = TypeVar("T")


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
    console: Console, *, data: Path | None, model: str | None, environment: Mapping[str, str], shown: Shown
) -> DemoResult:
    """Do the job, and print as much of it as is to be `shown`: on the mesh that runs on `data`,
    where its sessions stay to be looked at, or else on a mesh of its own, which is stopped.

    Raises StackError if the job could not be done. In that case, and if a check fails, the logs of
    its own mesh are kept and their path is printed.
    """
    home = Path(tempfile.mkdtemp(prefix="spawnmesh-demo-"))
    keep = False
    try:
        with open_stage(console, home, shown) as stage:
            async with open_running_mesh(data) if data else nullcontext() as mesh:
                report = await (_run_beside(stage, mesh) if mesh else _run_alone(stage, model, environment))
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


async def _run_alone(stage: DemoStage, model: str | None, environment: Mapping[str, str]) -> Document:
    """Do the job on a mesh of its own, and prove that nothing is left of it."""
    console, tenant_id = stage.console, stage.tenant_id
    choice = await choose(environment, model)
    console.print(f"The agents think with {choice.description}.")
    files = stage.home / "files"
    if choice.kind is ModelKind.SMOLLM2:
        plan = _small(files, choice)
    else:
        plan = _story(files, choice.name, scripted=choice.kind is ModelKind.SCRIPTED)
    async with open_thinking_stack(stage.home / "mesh", stage.say, choice) as stack:
        done = await do_job(stack, tenant_id, plan.job, stage.spawned)
        stage.say("the job is done; waiting for what comes after")
        # Runs leave nothing but what they published, and that is deleted with its sessions.
        kept = await leftovers(stack, tenant_id, kept_files=len({file.sha256 for file in done.published}))
        told = await deliveries(stack, tenant_id)
        await delete_family(stack, tenant_id, done.parent.session_id)
        left = await leftovers(stack, tenant_id)
        pids = stack.pids
    stage.say("the mesh is stopped")
    left = left.with_processes(pids)
    # Complete now: a process sends its spans before it ends.
    spans = load_spans(stack.traces_file, done.parent.trace_id)
    report = document(done, told, spans, kept, left, model=choice.name)
    checks = [*plan.judge(report, done), *common_checks(report)]
    report = with_checks(report, checks, stage.seconds)
    stage.show(report, done, spans)
    _show_next(stage)
    return report


def _show_next(stage: DemoStage) -> None:
    command = typed_command()
    steps = [(f"{command} up", "a mesh that stays, for `demo` and its console")]
    if stage.shown is Shown.SCREEN:
        steps.insert(0, (f"{command} demo --verbose", "transcript, trace, all checks"))
    demo_summary.show_next(stage.console, steps)
    if _TUTORIAL.exists():
        stage.console.print(f"The tutorial is {_TUTORIAL}: from nothing to a plugin and a worker.")


async def _run_beside(stage: DemoStage, mesh: MeshOfUp) -> Document:
    """Do the job on the mesh that is up, and leave its sessions there."""
    console, tenant_id = stage.console, stage.tenant_id
    model = await _primary(mesh)
    console.print(f"A mesh is up in {mesh.data_dir}: the job is done there, with {model}.", soft_wrap=True)
    plan = _story(stage.home / "files", model, scripted=model == SCRIPTED_AGENT)
    done = await do_job(mesh, tenant_id, plan.job, stage.spawned)
    stage.say("the job is done; waiting for its events and spans")
    told = await _all_deliveries(mesh, tenant_id, len(done.sessions))
    await pause_plugin(mesh, tenant_id)
    spans = await _all_spans(mesh, done.parent.trace_id)
    report = document(done, told, spans, None, None, model=model)
    path = f"/sessions/{done.parent.session_id}"
    report["console"] = f"{mesh.console}{path}" if mesh.console else ""
    report = with_checks(report, [*plan.judge(report, done), *common_checks(report)], stage.seconds)
    stage.show(report, done, spans)
    if mesh.console:
        console.print(f"See it in the console. The link signs in once, to the tenant {tenant_id}:")
        token = mesh.client_token(tenant_id)
        console.print(Text(sign_in_link(mesh.console, mesh.data_dir, token, path)), soft_wrap=True)
    return report


async def _primary(mesh: MeshOfUp) -> str:
    """Return the primary model; the scripted one if the primary is too small for the story."""
    try:
        async with connect(targets=mesh.targets, token=mesh.client_token(TENANT)) as client:
            name = next(one.model for one in await client.models.list() if one.is_primary)
    except MeshError as error:
        raise StackError(f"the mesh refused: {error}") from error
    return SCRIPTED_AGENT if name.partition("/")[0] == SMOLLM2 else name


async def _all_deliveries(mesh: MeshOfUp, tenant_id: str, end_count: int) -> list[Delivery]:
    """Return the calls of hooks, once the plugin has heard of so many ends or the time is over."""

    def is_told(several: list[Delivery]) -> bool:
        return sum(one.decision == DELIVERY_DECISION_TOLD for one in several) >= end_count

    return await _once(lambda: deliveries(mesh, tenant_id), is_told)


async def _all_spans(mesh: MeshOfUp, trace_id: str) -> list[Span]:
    """Return the spans of the trace, once those of all services and all parents have arrived or the
    time is over.
    """

    def is_complete(spans: list[Span]) -> bool:
        return not traces.orphans(spans) and {*DEPLOYABLES} <= {*traces.services(spans)}

    return await _once(lambda: asyncio.to_thread(load_spans, mesh.traces_file, trace_id), is_complete)


async def _once(read: Callable[[], Awaitable[T]], is_complete: Callable[[T], bool]) -> T:
    give_up = time.monotonic() + _SETTLE_SECONDS
    while True:
        found = await read()
        if is_complete(found) or time.monotonic() > give_up:
            return found
        await asyncio.sleep(_POLL_SECONDS)


def _story(files: Path, model: str, *, scripted: bool) -> Plan:
    """Return the full story: the coordinator, its child and its grandchild."""
    truth = make_files(files, SystemRandom().getrandbits(32), small=not scripted)
    timeout_seconds = _SCRIPTED_SECONDS if scripted else _REAL_SECONDS
    paths = [files / name for name in (TABLE, TEXT, PICTURE)]
    agents = with_published_figures(with_approval(profiles([SCRIPTED_FLAKY, model])))
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
