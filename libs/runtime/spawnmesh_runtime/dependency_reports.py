"""Report the states of the dependencies: named health services, a metric, and log events."""

from collections.abc import Iterable

import structlog
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from spawnmesh_core.dependency_watch import DependencyStatus, DependencyWatch

from spawnmesh_runtime.health import Health

UP = "spawnmesh.dependency.up"

log = structlog.get_logger()


def report_dependencies(watch: DependencyWatch, health: Health, meter: Meter) -> None:
    """Report each change of a state to health and log, and the states to the meter."""

    async def changed(before: DependencyStatus, after: DependencyStatus) -> None:
        await health.dependency(after.name, is_up=after.is_up is True)
        _log(before, after)

    def states(_options: CallbackOptions) -> Iterable[Observation]:
        for status in watch.statuses:
            if status.is_up is not None:
                yield Observation(int(status.is_up), {"dependency": status.name})

    watch.on_change(changed)
    meter.create_observable_gauge(
        UP, callbacks=[states], description="1 if the process can use the dependency, 0 if it cannot."
    )


def _log(before: DependencyStatus, after: DependencyStatus) -> None:
    if not after.is_up:
        # A process that starts is often earlier than what it needs.
        write = log.warning if before.was_up else log.info
        write("dependency_down", dependency=after.name, fault=after.last_fault, was_up=before.was_up)
    elif before.is_up is False:
        seconds = (after.since_time - before.since_time).total_seconds()
        log.info("dependency_up", dependency=after.name, down_seconds=round(seconds, 1))
