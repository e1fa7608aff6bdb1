"""Spans outlive the process that was killed before it sent them."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from spawnmesh_runtime.process import start_process
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.span_recovery import recover_spans
from spawnmesh_runtime.telemetry import traced

from tests.support.otlp import attributes, sent
from tests.support.waiting import eventually

# Each line that it reads takes it one step further.
WORKER = """
import asyncio, sys
from spawnmesh_runtime.process import run_process, start_process
from spawnmesh_runtime.settings import ProcessSettings, load_settings
from spawnmesh_runtime.telemetry import traced

async def step():
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)

async def main():
    async with start_process("hook", load_settings(ProcessSettings)):
        async with traced("sent"):
            pass
        await step()
        async with traced("outer", spawnmesh__run__id="run_1"):
            try:
                async with traced("ended", spawnmesh__attempt=2) as span:
                    raise KeyError
            except KeyError:
                pass
            async with traced("inner"):
                await step()

run_process(main())
"""

Collected = tuple[str, list[Any]]


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@asynccontextmanager
async def worker(endpoint: str, journals: Path, delay: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a process that has sent its first span once it waits for a line, if the delay is short."""
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        WORKER,
        env={
            "OTLP_ENDPOINT": endpoint,
            "SPAN_JOURNAL_DIR": str(journals),
            "OTEL_BSP_SCHEDULE_DELAY": delay,
            "PYTHONPATH": ":".join(sys.path),
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        await ready(running)
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


async def ready(running: asyncio.subprocess.Process) -> None:
    assert running.stdout is not None
    async with asyncio.timeout(60):
        assert await running.stdout.readline() == b"ready\n"


async def go_on(running: asyncio.subprocess.Process) -> None:
    assert running.stdin is not None
    running.stdin.write(b"\n")
    await running.stdin.drain()


async def test_another_process_sends_the_spans_of_a_killed_process(
    collector: Collected, tmp_path: Path
) -> None:
    endpoint, received = collector
    async with worker(endpoint, tmp_path, delay="600000") as running:
        await go_on(running)
        await ready(running)
        recover_spans(tmp_path, lambda spans: pytest.fail("its process lives"))
        running.kill()
        await running.wait()
        settings = ProcessSettings(otlp_endpoint=endpoint, span_journal_dir=tmp_path)
        async with start_process("session", settings), traced("own"):
            await eventually(lambda: received)
    found = {span.name: span for _, span in sent(received)}
    assert sorted((service, span.name) for service, span in sent(received)) == [
        ("hook", "ended"),
        ("hook", "inner"),
        ("hook", "outer"),
        ("hook", "sent"),
        ("session", "own"),
    ]
    outer, inner, ended = found["outer"], found["inner"], found["ended"]
    assert (inner.parent_span_id, ended.parent_span_id) == (outer.span_id, outer.span_id)
    assert {span.trace_id for span in (inner, ended)} == {outer.trace_id}
    assert outer.parent_span_id == b""
    assert attributes(outer) == {"spawnmesh.run.id": "run_1", "error.type": "PROCESS_LOST"}
    assert outer.status.message == "the process ended before this span"
    assert outer.end_time_unix_nano >= outer.start_time_unix_nano > 0
    assert attributes(ended) == {"spawnmesh.attempt": 2, "error.type": "KeyError"}
    codes = [found[name].status.code for name in ("outer", "inner", "ended", "sent")]
    assert codes == [2, 2, 2, 0]
    assert list(tmp_path.iterdir()) == []


async def test_a_span_that_was_sent_is_not_sent_again(collector: Collected, tmp_path: Path) -> None:
    endpoint, received = collector
    async with worker(endpoint, tmp_path, delay="10") as running:
        await eventually(lambda: sent(received))
        # The next export ends after the spans of the one before are out of the journal.
        await go_on(running)
        await ready(running)
        await eventually(lambda: len(sent(received)) == 2)
        running.kill()
        await running.wait()
        left: list[str] = []
        recover_spans(tmp_path, lambda spans: bool(left.extend(span.name for span in spans)))
    assert set(left) - {"ended"} == {"outer", "inner"}


async def test_a_process_works_without_a_journal_that_it_cannot_write(
    collector: Collected, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint, received = collector
    (tmp_path / "file").touch()
    settings = ProcessSettings(otlp_endpoint=endpoint, span_journal_dir=tmp_path / "file")
    async with start_process("hook", settings), traced("work"):
        pass
    assert [span.name for _, span in sent(received)] == ["work"]
    assert "span_journal_unavailable" in capsys.readouterr().out
