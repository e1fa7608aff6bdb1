"""The terminal of the demo: its progress, and as much of the outcome as is wanted."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from random import SystemRandom

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from spawnmesh.session.v1.session_pb2 import Session
from spawnmesh_core.spans import Span

from spawnmesh_devstack import demo_report, demo_summary
from spawnmesh_devstack.demo_document import Document, receipt_of
from spawnmesh_devstack.demo_job import Done


class Shown(Enum):
    """The part of the outcome that is printed."""

    NOTHING = "nothing"
    SCREEN = "screen"
    EVERYTHING = "everything"


@dataclass(frozen=True)
class DemoStage:
    """The terminal, the directory for files, and the time of the begin."""

    console: Console
    home: Path
    shown: Shown
    progress: Progress
    began: float = field(default_factory=time.monotonic)
    tenant_id: str = field(default_factory=lambda: f"demo-{SystemRandom().getrandbits(40):x}")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def say(self, line: str) -> None:
        """Show the step that begins: in the moving line of a terminal, else as a line."""
        if self.progress.disable:
            self.console.print(f"{self.seconds:5.1f} s  {line}", style="dim", highlight=False)
        for task_id in self.progress.task_ids:
            self.progress.update(task_id, description=line)

    def spawned(self, session: Session) -> None:
        """Show the receipt of the spawn."""
        self.say(f"{session.agent_id} spawned, with {session.receipt.count} files")
        if self.shown is Shown.EVERYTHING:
            demo_report.show_receipt(self.console, receipt_of(session))

    def show(self, report: Document, done: Done, spans: Sequence[Span]) -> None:
        """Print the outcome, and nothing that moves from here on."""
        self.progress.stop()
        if self.shown is Shown.SCREEN:
            demo_summary.show_summary(self.console, report)
        elif self.shown is Shown.EVERYTHING:
            _show_everything(self.console, report, done, spans)


@contextmanager
def open_stage(console: Console, home: Path, shown: Shown) -> Iterator[DemoStage]:
    """Open the stage. A moving line shows the step and its time, if a terminal is to
    show no more than the screen of the outcome.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    is_moving = console.is_terminal and shown is Shown.SCREEN
    with Progress(*columns, console=console, transient=True, disable=not is_moving) as progress:
        progress.add_task("looking for models")
        yield DemoStage(console, home, shown, progress)


def _show_everything(console: Console, report: Document, done: Done, spans: Sequence[Span]) -> None:
    demo_report.show_sessions(console, report)
    demo_report.show_published(console, report)
    parent = done.parent
    title = f"Transcript of the {parent.agent_id}, as it is stored"
    demo_report.show_transcript(console, title, done.transcripts[parent.session_id])
    demo_report.show_attempts(console, report)
    demo_report.show_trace(console, report, spans)
    demo_report.show_end(console, report)
