"""Metrics of a runner."""

from collections.abc import Collection, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from spawnmesh_runner.clients.sandbox.sandbox import Sandbox
from spawnmesh_runner.clients.workspace_disk import WorkspaceDisk


def measure_disk(meter: Meter, disk: WorkspaceDisk) -> None:
    """Measure the free space of the disk, and what a claim needs of it, at each collection."""

    def free(_: CallbackOptions) -> Iterable[Observation]:
        try:
            return [Observation(disk.free_bytes())]
        except OSError:
            return []

    meter.create_observable_gauge(
        "spawnmesh.runner.disk.free",
        callbacks=[free],
        unit="By",
        description="Free space on the disk of the workspaces.",
    )
    meter.create_observable_gauge(
        "spawnmesh.runner.disk.min_free",
        callbacks=[lambda _: [Observation(disk.min_free_bytes)]],
        unit="By",
        description="With less free space the runner claims no runs.",
    )


def measure_slots(meter: Meter, running: Collection[object], max_runs: int) -> None:
    """Measure at each collection how many runs the runner has, and how many more it would take."""

    def slots(_: CallbackOptions) -> Iterable[Observation]:
        used = len(running)
        yield Observation(used, {"spawnmesh.runner.slot.state": "used"})
        yield Observation(max(0, max_runs - used), {"spawnmesh.runner.slot.state": "free"})

    meter.create_observable_gauge(
        "spawnmesh.runner.slots",
        callbacks=[slots],
        unit="{slot}",
        description="Places for runs of this runner, by state: used or free.",
    )


def measure_sandbox(meter: Meter, sandbox: Sandbox) -> None:
    """Report which backend starts MCP servers, as 1 with the backend's name."""

    def backend(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(1, {"backend": sandbox.backend})

    meter.create_observable_gauge(
        "spawnmesh.runner.mcp.sandbox",
        callbacks=[backend],
        description="The backend that starts MCP servers: bubblewrap, namespaces, none or unavailable.",
    )
