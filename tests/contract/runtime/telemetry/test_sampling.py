"""Which traces are recorded, and the id of the span that is known before it is recorded."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from spawnmesh_runtime.process import start_process
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.telemetry import (
    continue_trace,
    current_trace_id,
    derived_traceparent,
    record_derived,
    trace_id_of,
    traced,
)

from tests.support.otlp import attributes, open_collector, sent
from tests.support.waiting import eventually

SPAWN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BEGIN = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


async def exported(ratio: float) -> list[str]:
    """Return the names of the spans that a process with this ratio has sent."""
    async with open_collector() as (endpoint, received):
        settings = ProcessSettings(otlp_endpoint=endpoint, trace_sample_ratio=ratio)
        async with start_process("hook", settings):
            for _ in range(200):
                async with traced("own"):
                    assert current_trace_id()
            with continue_trace(SPAWN):
                async with traced("continued"):
                    pass
            with continue_trace(SPAWN[:-1] + "0"):
                async with traced("unsampled"):
                    pass
    return [span.name for _, span in sent(received)]


async def flushed(received: list[Any], count: int) -> None:
    """Wait until so many spans have arrived."""
    await eventually(lambda: len(sent(received)) >= count)


@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0])
async def test_share_of_the_traces_that_start_here_and_all_that_are_continued(ratio: float) -> None:
    names = await exported(ratio)
    assert names.count("continued") == 1
    assert names.count("unsampled") == 0
    # With a share of a quarter, outside of these bounds once in 10^12.
    least, most = {0.0: (0, 0), 0.25: (12, 110), 1.0: (200, 200)}[ratio]
    assert least <= names.count("own") <= most


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
async def test_ratio_is_a_share(ratio: float) -> None:
    with pytest.raises(ValidationError, match="trace_sample_ratio"):
        ProcessSettings(trace_sample_ratio=ratio)


async def test_span_has_the_id_that_its_children_knew_before_it_was_recorded() -> None:
    known = derived_traceparent(SPAWN, "run_1")
    assert known == derived_traceparent(SPAWN, "run_1") != derived_traceparent(SPAWN, "run_2")
    assert (trace_id_of(known), known[-2:]) == (trace_id_of(SPAWN), "01")
    times = BEGIN, BEGIN + timedelta(seconds=90)
    async with (
        open_collector() as (endpoint, received),
        start_process("hook", ProcessSettings(otlp_endpoint=endpoint)),
    ):
        with continue_trace(known):
            async with traced("attempt"):
                pass
        record_derived(SPAWN, "run_1", "run", times, {"a": 1}, error_type="RUN_TIMEOUT")
        async with traced("later"):  # Its id is random again.
            pass
        await flushed(received, 3)
    spans = {span.name: span for _, span in sent(received)}
    run, attempt = spans["run"], spans["attempt"]
    assert attempt.parent_span_id == run.span_id == bytes.fromhex(known.split("-")[2])
    assert run.parent_span_id == bytes.fromhex(SPAWN.split("-")[2])
    assert spans["later"].span_id != run.span_id
    assert (run.start_time_unix_nano, run.end_time_unix_nano) == tuple(
        int(time.timestamp()) * 10**9 for time in times
    )
    assert attributes(run) == {"a": 1, "error.type": "RUN_TIMEOUT"}
    assert run.status.code == run.status.STATUS_CODE_ERROR


@pytest.mark.parametrize("malformed", ["", "rubbish"])
def test_no_trace_has_no_derived_span(malformed: Any) -> None:
    assert derived_traceparent(malformed, "run_1") == ""
