"""Progress of long transfers on a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from spawnmesh_client.attachment_uploads import OnProgress, no_progress

from spawnmesh_command.cli.show import plain

LONG_BYTES = 1024 * 1024


@contextmanager
def progress_bars() -> Iterator[OnProgress]:
    """Show a bar on standard error for each file of LONG_BYTES or more, until the block ends.

    Without a terminal, show nothing.
    """
    if not sys.stderr.isatty():
        yield no_progress
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bars: dict[str, TaskID] = {}

        def show(name: str, done: int, size: int) -> None:
            if size < LONG_BYTES:
                return
            if name not in bars:
                bars[name] = progress.add_task(plain(name, keep="").replace("[", "\\["), total=size)
            progress.update(bars[name], completed=done)

        yield show
