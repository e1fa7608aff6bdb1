"""Metrics of garbage collections."""

from dataclasses import asdict

from opentelemetry.metrics import Meter

from spawnmesh_attachment_blob.domain.garbage import GarbageCounts

_SUFFIX = "_count"


class GarbageMetrics:
    """Counters over all tenants.

    Missing objects, damaged objects and refused deletions remain, so each collection counts them
    again.
    """

    def __init__(self, meter: Meter) -> None:
        self._items = meter.create_counter(
            "spawnmesh.garbage.items",
            unit="{item}",
            description="Items that collections found, by kind. All kinds are removed, except missing"
            " and damaged objects and refused deletions.",
        )
        self._objects = meter.create_counter(
            "spawnmesh.garbage.objects_compared",
            unit="{object}",
            description="Objects that collections compared with rows.",
        )
        self._duration = meter.create_histogram(
            "spawnmesh.garbage.collection.duration",
            unit="s",
            description="Duration of the collection of one tenant that a worker does by itself.",
        )
        self.record_found(GarbageCounts())  # Otherwise no alert would see the first of a kind.

    def record_found(self, counts: GarbageCounts) -> None:
        """Add what a part of a collection found that was no dry run."""
        found = asdict(counts)
        self._objects.add(found.pop(f"seen_object{_SUFFIX}"))
        for name, count in found.items():
            self._items.add(count, {"spawnmesh.garbage.kind": name.removesuffix(_SUFFIX)})

    def record_collected(self, seconds: float) -> None:
        """Record that the worker collected for a tenant by itself."""
        self._duration.record(seconds)

    def record_failed(self, error: BaseException, seconds: float) -> None:
        """Record that a collection of the worker failed."""
        self._duration.record(seconds, {"error.type": type(error).__name__})
