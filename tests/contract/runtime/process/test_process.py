"""The life of a process, as an operator observes it."""

import asyncio
import json
import signal
import sys
from typing import Any

import pytest
import structlog
from spawnmesh_runtime.process import start_process
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.telemetry import continue_trace, current_trace_id, traced

SERVE = """
import logging
from spawnmesh_runtime.process import run_process, start_process
from spawnmesh_runtime.server import build_server, run_until_stopped
from spawnmesh_runtime.settings import ProcessSettings, load_settings

async def main():
    async with start_process("hook", load_settings(ProcessSettings)) as process:
        logging.getLogger("library").warning("beware of %s", "dogs")
        await run_until_stopped(process, build_server(process))

run_process(main())
"""

SWITCH = """
import sys
from spawnmesh_runtime.process import run_process

async def main():
    print(sys.getswitchinterval())

run_process(main())
"""


@pytest.fixture(autouse=True)
def _logs_as_before() -> Any:
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_process_says_where_it_serves_and_ends_cleanly_on_a_signal(
    keys: Any, number: signal.Signals
) -> None:
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SERVE,
        env={"JWKS_FILE": str(keys.jwks_file), "PYTHONPATH": ":".join(sys.path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert running.stdout is not None
    warning = json.loads(await running.stdout.readline())
    serving = json.loads(await running.stdout.readline())
    assert (warning["event"], warning["level"], warning["service"]) == ("beware of dogs", "warning", "hook")
    assert serving["event"] == "serving"
    assert serving["port"] > 0
    running.send_signal(number)
    async with asyncio.timeout(60):
        rest, errors = await running.communicate()
    assert [json.loads(line)["event"] for line in rest.splitlines()] == ["draining", "stopped"]
    assert (running.returncode, errors) == (0, b"")


async def test_a_thread_that_computes_gives_way_to_the_loop_after_half_a_millisecond() -> None:
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SWITCH,
        env={"PYTHONPATH": ":".join(sys.path)},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        printed, _ = await running.communicate()
    assert float(printed) <= 0.0005


async def test_spans_left_are_sent_at_the_end(collector: Any) -> None:
    endpoint, received = collector
    settings = ProcessSettings(otlp_endpoint=endpoint, environment="test")
    async with start_process("hook", settings), traced("work"):
        trace_id = current_trace_id()
    [sent] = [group for request in received for group in request.resource_spans]
    [span] = [span for scope in sent.scope_spans for span in scope.spans]
    assert (span.name, span.trace_id.hex()) == ("work", trace_id)
    resource = {item.key: item.value.string_value for item in sent.resource.attributes}
    assert resource["service.name"] == "hook"
    assert resource["service.namespace"] == "spawnmesh"
    assert resource["deployment.environment.name"] == "test"
    assert resource["service.instance.id"]
    assert resource["service.version"]


async def test_there_is_a_trace_id_also_when_no_trace_leaves_the_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with start_process("hook", ProcessSettings()):
        with continue_trace(""):
            async with traced("work"):
                structlog.get_logger().info("done", answer=42)
                structlog.get_logger().debug("not shown")
                trace_id = current_trace_id()
    [line] = capsys.readouterr().out.splitlines()
    event = json.loads(line)
    assert event.pop("time").endswith("Z")
    assert event == {"event": "done", "answer": 42, "level": "info", "service": "hook", "trace_id": trace_id}
    assert len(trace_id) == 32
