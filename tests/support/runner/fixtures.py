"""Runs a runner with scripted peers.

They speak the real contracts over the real runtime, and keep in memory what the contracts promise.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from opentelemetry.trace import Tracer
from spawnmesh_runner.app import open_service
from spawnmesh_runner.clients.sandbox.sandbox import FindSandbox, find_sandbox
from spawnmesh_runner.settings import RunnerSettings
from spawnmesh_runtime.metrics import Metrics
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.telemetry import use_tracer

from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.serving import served, shared_settings

OFTEN = 0.005
"""A share of the lease, for heartbeats that are 0.3 s apart and a lease that outlasts the test."""


@asynccontextmanager
async def running_runner(
    mesh: ScriptedMesh,
    keys: Path,
    workspace_root: Path,
    *,
    tracer: Tracer | None = None,
    metrics: Metrics | None = None,
    find: FindSandbox = find_sandbox,
    **options: Any,
) -> AsyncIterator[None]:
    """Start a runner with the scripted peers; stop it with the block.

    MCP servers run without a sandbox, unless the options say otherwise, so that they can write
    where tests read.
    """

    @asynccontextmanager
    async def open_peers(process: Process, settings: ProcessSettings) -> AsyncIterator[MeshServer]:
        server = build_server(process)
        mesh.add_to(server)
        yield server

    async with served("session", ProcessSettings(**shared_settings("session", keys)), open_peers) as target:
        settings = RunnerSettings(
            session_target=target,
            model_router_target=target,
            hook_target=target,
            attachment_blob_target=target,
            workspace_root=workspace_root,
            **{
                **shared_settings("runner", keys),
                "transcript_target": target,
                "claim_wait_seconds": 0.2,
                "unsandboxed_stdio_servers": True,
                **options,
            },
        )
        async with start_process("runner", settings) as process:
            if tracer is not None:
                use_tracer(tracer)
                process = replace(process, tracer=tracer)
            if metrics is not None:
                process = replace(process, metrics=metrics)
            async with open_service(process, settings, find=find):
                yield
