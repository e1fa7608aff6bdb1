"""Metrics of a process, as a collector receives them and as Prometheus scrapes them."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
import structlog
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from pydantic import ValidationError
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.otlp import open_collector


@pytest.fixture
async def collector() -> AsyncIterator[tuple[str, list[Any]]]:
    async with open_collector("metrics") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


async def fetched(process: Process) -> str:
    return await asyncio.to_thread(
        lambda: urlopen(f"http://127.0.0.1:{process.metrics.port}/metrics").read().decode()
    )


async def test_prometheus_fetches_what_was_counted() -> None:
    async with start_process("hook", ProcessSettings(metrics_listen="127.0.0.1:0")) as process:
        calls = process.metrics.meter.create_counter("spawnmesh.things", unit="{thing}")
        calls.add(2, {"spawnmesh.kind": "old"})
        calls.add(3, {"spawnmesh.kind": "old"})

        text = await fetched(process)

    assert 'spawnmesh_things_total{spawnmesh_kind="old"} 5.0' in text
    assert 'service_name="hook"' in text
    with pytest.raises(URLError):
        await fetched(process)


async def exemplars(process: Process) -> dict[tuple[str, str, str], Any]:
    """Return the scraped exemplars by series and bucket."""
    asked = Request(
        f"http://127.0.0.1:{process.metrics.port}/metrics", headers={"Accept": "application/openmetrics-text"}
    )
    text = await asyncio.to_thread(lambda: urlopen(asked).read().decode())
    return {
        (sample.name, sample.labels.get("spawnmesh_kind", ""), sample.labels["le"]): sample.exemplar
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.exemplar is not None
    }


async def test_prometheus_fetches_the_trace_of_a_call_in_each_bucket(
    collector: tuple[str, list[Any]],
) -> None:
    settings = ProcessSettings(metrics_listen="127.0.0.1:0", otlp_endpoint=collector[0])
    async with start_process("hook", settings) as process:
        bounds = [1.0, 2.0, 4.0]
        waits = process.metrics.meter.create_histogram(
            "spawnmesh.wait", unit="s", explicit_bucket_boundaries_advisory=bounds
        )
        others = process.metrics.meter.create_histogram(
            "spawnmesh.wait.other", unit="s", explicit_bucket_boundaries_advisory=bounds
        )
        traces: dict[float, str] = {}
        for seconds, kind in ((0.5, "old"), (3.0, "old"), (100.0, "new")):
            with process.tracer.start_as_current_span("call") as span:
                traces[seconds] = f"{span.get_span_context().trace_id:032x}"
                waits.record(seconds, {"spawnmesh.kind": kind})
        with process.tracer.start_as_current_span("call"):
            others.record(1.5)
        waits.record(1.5, {"spawnmesh.kind": "old"})  # In no trace.

        told = await exemplars(process)
        assert await exemplars(process) == told, "fetching takes nothing away"

    assert {
        where: (exemplar.labels["trace_id"], exemplar.value)
        for where, exemplar in told.items()
        if where[0] == "spawnmesh_wait_seconds_bucket"
    } == {
        ("spawnmesh_wait_seconds_bucket", "old", "1.0"): (traces[0.5], 0.5),
        ("spawnmesh_wait_seconds_bucket", "old", "4.0"): (traces[3.0], 3.0),
        ("spawnmesh_wait_seconds_bucket", "new", "+Inf"): (traces[100.0], 100.0),
    }
    assert ("spawnmesh_wait_other_seconds_bucket", "", "2.0") in told
    assert len(told) == 4


async def test_two_processes_in_one_program_do_not_mix() -> None:
    settings = ProcessSettings(metrics_listen="127.0.0.1:0")
    async with start_process("hook", settings) as one, start_process("session", settings) as other:
        one.metrics.meter.create_counter("spawnmesh.things").add(1)

        assert "spawnmesh_things_total 1.0" in await fetched(one)
        assert "spawnmesh_things" not in await fetched(other)


async def test_collector_is_sent_what_is_left_at_the_end(collector: tuple[str, list[Any]]) -> None:
    endpoint, received = collector
    async with start_process("hook", ProcessSettings(otlp_endpoint=endpoint)) as process:
        process.metrics.meter.create_histogram("spawnmesh.wait", unit="s").record(0.5)
        assert process.metrics.port is None

    (resource,) = received[-1].resource_metrics
    assert {"service.name": "hook", "service.namespace": "spawnmesh"}.items() <= {
        pair.key: pair.value.string_value for pair in resource.resource.attributes
    }.items()
    (metric,) = resource.scope_metrics[0].metrics
    assert (metric.name, metric.unit, metric.histogram.data_points[0].sum) == ("spawnmesh.wait", "s", 0.5)


async def test_without_a_consumer_nothing_is_recorded_and_nothing_listens() -> None:
    async with start_process("hook", ProcessSettings()) as process:
        process.metrics.meter.create_counter("spawnmesh.things").add(1)
        assert process.metrics.port is None


async def test_port_in_use_ends_the_process_with_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SystemExit, match=f"hook: cannot offer metrics on {address}: the port is in use"):
            async with start_process("hook", ProcessSettings(metrics_listen=address)):
                pass


def test_metrics_listen_is_an_address() -> None:
    with pytest.raises(ValidationError, match="metrics_listen"):
        ProcessSettings(metrics_listen="9464")
