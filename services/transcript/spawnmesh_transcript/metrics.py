"""What operators see of the tier. Counts over all tenants."""

from opentelemetry.metrics import Meter


class TierMetrics:
    """How often large results are references, and how often somebody reads what is behind one."""

    def __init__(self, meter: Meter) -> None:
        self._stubbed = meter.create_counter(
            "spawnmesh.transcript.stubbed.size",
            unit="By",
            description="Bytes of results for which contexts had references.",
        )
        self._drill_downs = meter.create_counter(
            "spawnmesh.transcript.drill_downs",
            unit="{read}",
            description="Files described, by what was asked for of their content and by whom.",
        )

    def stubbed(self, size_bytes: int) -> None:
        """A context was assembled that has references for so many bytes."""
        if size_bytes:
            self._stubbed.add(size_bytes)

    def drilled_down(self, *, part: str, caller: str) -> None:
        """A file was described; `part` is none, start, bytes or lines."""
        self._drill_downs.add(1, {"spawnmesh.transcript.drill_down.part": part, "spawnmesh.caller.kind": caller})
