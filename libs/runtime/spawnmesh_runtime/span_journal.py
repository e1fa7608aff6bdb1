"""The journal of a process: its spans that are open or not yet exported, in a file.

OpenTelemetry exports a span when it has ended. The spans that are open in a process when it is
killed would be missing from their traces, although other processes have recorded their children.
The file outlives the process, and another process exports what is in it (`span_recovery`).
"""

import fcntl
import os
import threading
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from time import time_ns

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from spawnmesh_runtime.span_journal_file import (
    ALIVE_OFFSET,
    FILE_BYTES,
    SLOT_COUNT,
    encode_header,
    encode_time,
    free_slot,
    write_end,
    write_span,
)

SUFFIX = ".spans"


class SpanJournal(SpanProcessor):
    """Writes each span at its start and at its end; `release` removes the exported spans.

    The process holds a lock on the file while it lives. What is written survives the end of the
    process at any point, but not the end of the machine. The file is mapped into memory and has its
    final size from the beginning, so that a disk that is full later costs nothing. A span is not in
    the journal if too many spans are open. Register it before the processor that exports: a span
    must not be exported before its end is written.

    Raises OSError if the file cannot be created, for example on a full disk.
    """

    def __init__(self, directory: Path, resource: Resource) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = directory / f"{uuid.uuid4().hex}{SUFFIX}"
        self._free = list(range(SLOT_COUNT - 1, -1, -1))  # The last is used next: few pages are used.
        self._open: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._lock = threading.Lock()
        unlocked = self._path.with_suffix(".new")  # Another process would take it for abandoned.
        self._file = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            os.posix_fallocate(self._file, 0, FILE_BYTES)
            self._map = mmap(self._file, FILE_BYTES)
            os.pwrite(self._file, encode_header(resource, time_ns()), 0)
            unlocked.rename(self._path)
        except OSError:
            os.close(self._file)
            unlocked.unlink(missing_ok=True)
            raise

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Write the span as open."""
        with self._lock:
            slot = self._free.pop() if self._free else self._oldest_ended()
            if slot is None:
                return
            self._open[span.context.span_id] = slot
            write_span(self._map, slot, span)

    def on_end(self, span: ReadableSpan) -> None:
        """Write the span as ended."""
        with self._lock:
            slot = self._open.pop(span.context.span_id, None)
            if slot is None:
                return
            self._ended[span.context.span_id] = slot
            write_end(self._map, slot, span)

    def release(self, spans: Iterable[ReadableSpan]) -> None:
        """Remove ended spans: they are exported or given up."""
        for span in spans:
            with self._lock:
                slot = self._ended.pop(span.context.span_id, None)
                if slot is not None:
                    free_slot(self._map, slot)
                    self._free.append(slot)

    def mark_alive(self) -> None:
        """Write the time until which the open spans lasted at least. Raises nothing."""
        with suppress(OSError):  # Not through the map: this also sets the time of the file.
            os.pwrite(self._file, encode_time(time_ns()), ALIVE_OFFSET)

    def close(self) -> None:
        """Remove the file, unless spans are left for another process to export.

        Later spans are not written.
        """
        with self._lock:
            if not self._open and not self._ended:
                self._path.unlink(missing_ok=True)
            for slots in (self._open, self._ended, self._free):
                slots.clear()
            self._map.close()
        os.close(self._file)

    def _oldest_ended(self) -> int | None:
        """Return the slot of the span that has waited longest for its export.

        It was dropped: fewer spans than there are slots wait for the exporter.
        """
        if not self._ended:
            return None
        return self._ended.pop(next(iter(self._ended)))


class JournaledExporter(SpanExporter):
    """Exports spans, and then removes them from the journal."""

    def __init__(self, exporter: SpanExporter, journal: SpanJournal) -> None:
        self._exporter = exporter
        self._journal = journal

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export the spans. Those that cannot be exported are given up, as without a journal."""
        try:
            return self._exporter.export(spans)
        finally:
            self._journal.release(spans)

    def shutdown(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()
