"""Count the open calls that wait for something to happen."""

from opentelemetry.metrics import Meter, UpDownCounter

from spawnmesh_runtime.call import Call, Step


def open_watches(meter: Meter) -> UpDownCounter:
    """Create the counter of open watches."""
    return meter.create_up_down_counter(
        "spawnmesh.watches",
        unit="{call}",
        description="Open calls that wait for something to happen, by method: watchers and free runners.",
    )


def counted_watches(inner: Step, path: str, watches: UpDownCounter) -> Step:
    """Count each call of the method while it is open and has its place in the limits."""
    attributes = {"rpc.method": path}

    async def step(call: Call) -> object:
        watches.add(1, attributes)
        try:
            return await inner(call)
        finally:
            watches.add(-1, attributes)

    return step
