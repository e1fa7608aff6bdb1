"""The file of a span journal and its slots."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, Tracer
from spawnmesh_runtime.span_journal import JournaledExporter, SpanJournal
from spawnmesh_runtime.span_journal_file import decode_spans
from spawnmesh_runtime.span_recovery import recover_spans

RESOURCE = Resource({"service.name": "hook", "service.version": "1"})


@pytest.fixture
def journal(tmp_path: Path) -> SpanJournal:
    return SpanJournal(tmp_path, RESOURCE)


@pytest.fixture
def tracer(journal: SpanJournal) -> Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(journal)
    return provider.get_tracer("test")


def written(folder: Path) -> list[ReadableSpan]:
    """Return the spans that would be recovered now."""
    [path] = folder.glob("*.spans")
    return list(decode_spans(path.read_bytes()))


def names(folder: Path) -> Iterator[str]:
    return (span.name for span in written(folder))


def test_an_open_span_ends_when_its_process_was_last_alive(
    journal: SpanJournal, tracer: Tracer, tmp_path: Path
) -> None:
    span = tracer.start_span("chat ä", kind=SpanKind.CLIENT, attributes={"list": ("a", "b"), "share": 0.5})
    journal.mark_alive()
    [left] = written(tmp_path)
    assert (left.name, left.kind, left.context.span_id) == (
        "chat ä",
        SpanKind.CLIENT,
        span.get_span_context().span_id,
    )
    assert dict(left.attributes or {}) == {"list": ["a", "b"], "share": 0.5, "error.type": "PROCESS_LOST"}
    first_end = left.end_time or 0
    assert first_end > (left.start_time or 0)
    journal.mark_alive()
    assert (written(tmp_path)[0].end_time or 0) > first_end


def test_spans_are_in_the_journal_until_they_are_exported(
    journal: SpanJournal, tracer: Tracer, tmp_path: Path
) -> None:
    exporter = InMemorySpanExporter()
    tracer.start_span("first").end()
    [ended] = written(tmp_path)
    tracer.start_span("second")
    assert JournaledExporter(exporter, journal).export([ended]) is SpanExportResult.SUCCESS
    assert [span.name for span in exporter.get_finished_spans()] == ["first"]
    assert list(names(tmp_path)) == ["second"]
    tracer.start_span("third")
    assert list(names(tmp_path)) == ["third", "second"], "the slot is used again"


def test_the_journal_of_a_process_that_has_sent_everything_is_removed(
    journal: SpanJournal, tracer: Tracer, tmp_path: Path
) -> None:
    tracer.start_span("work").end()
    journal.release(written(tmp_path))
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_a_journal_stays_until_its_spans_are_exported_but_not_forever(
    journal: SpanJournal, tracer: Tracer, tmp_path: Path
) -> None:
    tracer.start_span("open")
    journal.close()
    recover_spans(tmp_path, lambda spans: False)
    assert list(names(tmp_path)) == ["open"]
    [path] = tmp_path.iterdir()
    os.utime(path, (0, 0))
    recover_spans(tmp_path, lambda spans: False)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_journal_is_removed(tmp_path: Path) -> None:
    (tmp_path / "other.spans").write_bytes(b"x" * 10_000)
    recover_spans(tmp_path, lambda spans: pytest.fail("it has no spans"))
    assert list(tmp_path.iterdir()) == []


def test_spans_that_the_exporter_dropped_make_room_for_others(tracer: Tracer, tmp_path: Path) -> None:
    for _ in range(4096):
        tracer.start_span("dropped").end()
    tracer.start_span("newest")
    assert list(names(tmp_path)).count("newest") == 1


def test_no_more_spans_are_written_than_there_are_slots(tracer: Tracer, tmp_path: Path) -> None:
    held = [tracer.start_span("open") for _ in range(4097)]
    for span in held:
        span.end()
    assert len(written(tmp_path)) == 4096


def test_what_does_not_fit_is_left_out_and_the_span_is_kept(tmp_path: Path) -> None:
    journal = SpanJournal(tmp_path, Resource({"service.name": "hook", "cluster": "x" * 5000}))
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(journal)
    provider.get_tracer("test").start_span("n" * 300, attributes={"long": "x" * 2000}).end()
    [left] = written(tmp_path)
    assert left.name == "n" * 256
    assert dict(left.attributes or {}) == {}
    assert dict(left.resource.attributes) == {"service.name": "hook"}
