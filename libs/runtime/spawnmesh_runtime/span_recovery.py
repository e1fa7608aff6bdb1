"""The export of spans that were left behind by processes that died."""

import fcntl
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import time

import structlog
from opentelemetry.sdk.trace import ReadableSpan

from spawnmesh_runtime.span_journal import SUFFIX, SpanJournal
from spawnmesh_runtime.span_journal_file import decode_spans

_PAUSE_SECONDS = 1.0
_KEPT_SECONDS = 3600.0  # Without a collector, journals of processes that crash again and again gather.

Export = Callable[[Sequence[ReadableSpan]], bool]
"""Exports spans, and returns whether the collector has them."""


def recover_spans(directory: Path, export: Export) -> None:
    """Export the spans in the journals of processes that have died, and remove the journals.

    A span is exported at least once. Several processes can do this at the same time. A journal that
    cannot be exported stays for the next call, but not longer than an hour after its process died.
    """
    for path in directory.glob(f"*{SUFFIX}"):
        with suppress(OSError):  # Its process lives, or another one has recovered it.
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                _recover(file, path, export)
            finally:
                os.close(file)


def _recover(file: int, path: Path, export: Export) -> None:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    status = os.fstat(file)
    if not status.st_nlink:
        return
    log = structlog.get_logger()
    try:
        spans = list(decode_spans(os.pread(file, status.st_size, 0)))
    except (ValueError, KeyError):
        log.warning("span_journal_unreadable", file=path.name)
        spans = []
    if not spans or export(spans) or status.st_mtime < time() - _KEPT_SECONDS:
        path.unlink()
        log.info("spans_recovered", count=len(spans))


class JournalKeeper(threading.Thread):
    """Writes every second that this process lives, and recovers the spans of others."""

    def __init__(self, journal: SpanJournal, directory: Path, export: Export) -> None:
        super().__init__(name="span-journal", daemon=True)
        self._journal = journal
        self._directory = directory
        self._export = export
        self._stopping = threading.Event()

    def run(self) -> None:
        """Work until stopped."""
        while not self._stopping.is_set():
            self._journal.mark_alive()
            recover_spans(self._directory, self._export_unless_stopping)
            self._stopping.wait(_PAUSE_SECONDS)

    def stop(self) -> None:
        """Let the thread end. Join it to wait for an export that has begun."""
        self._stopping.set()

    def _export_unless_stopping(self, spans: Sequence[ReadableSpan]) -> bool:
        return not self._stopping.is_set() and self._export(spans)
