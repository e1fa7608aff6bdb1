"""The places of a runner are measured, and a tool that fails is an error in the trace."""

import asyncio
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.support.measured import Measured
from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually


async def test_ClaimRuns__the_places_of_the_runner_are_measured(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    measured, mesh.hold_model = Measured(), asyncio.Event()
    mesh.answers.append(saying("Done."))

    def slots() -> dict[str, Any]:
        points = measured.points("spawnmesh.runner.slots")
        return {attributes["spawnmesh.runner.slot.state"]: value for attributes, value in points}

    async with running_runner(mesh, keys, tmp_path, metrics=measured.metrics, max_runs=3):
        assert slots() == {"used": 0, "free": 3}
        mesh.queue_run()
        await eventually(lambda: slots() == {"used": 1, "free": 2})
        mesh.hold_model.set()
        await eventually(lambda: slots() == {"used": 0, "free": 3})


async def test_Generate__a_tool_that_refuses_is_an_error_with_its_reason(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    mesh.answers.extend([calling(("c1", "read_file", '{"path": "nothing.txt"}')), saying("No.")])
    mesh.queue_run(tools=("read_file",))
    async with running_runner(mesh, keys, tmp_path, tracer=provider.get_tracer("test")):
        await eventually(lambda: mesh.finalized)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    tool, agent = spans["execute_tool read_file"], spans["invoke_agent default"]
    assert tool.status.status_code is StatusCode.ERROR
    assert dict(tool.attributes or {})["error.type"] == "NOT_FOUND"
    assert agent.status.status_code is StatusCode.UNSET
