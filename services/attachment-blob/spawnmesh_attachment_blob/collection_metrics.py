"""What collections found, as metrics."""

from dataclasses import asdict

from opentelemetry.metrics import Meter

from spawnmesh_attachment_blob.domain.garbage import GarbageCounts

_SUFFIX = "_count"


class CollectionMetrics:
    """Counts over all tenants. What is reported and left, missing and damaged objects and refused deletions, is counted again by each
    collection that finds it.
    """

    def __init__(self, meter: Meter) -> None:
        self._items = meter.create_counter(
            "spawnmesh.garbage.items",
            unit="{item}",
            description="What collections found, by kind; all but missing and damaged objects removed, unless their deletion was refused.",
        )
        self._objects = meter.create_counter(
            "spawnmesh.garbage.objects_compared",
            unit="{object}",
            description="Objects that collections compared with rows.",
        )
        self._duration = meter.create_histogram(
            "spawnmesh.garbage.collection.duration", unit="s", description="How long the collection of one tenant took."
        )

    def collected(self, counts: GarbageCounts, seconds: float) -> None:
        """A collection that was no dry run came to its end."""
        found = asdict(counts)
        self._objects.add(found.pop(f"seen_object{_SUFFIX}"))
        for name, count in found.items():
            self._items.add(count, {"spawnmesh.garbage.kind": name.removesuffix(_SUFFIX)})
        self._duration.record(seconds)

    def failed(self, error: BaseException, seconds: float) -> None:
        """A collection that was no dry run was cut off."""
        self._duration.record(seconds, {"error.type": type(error).__name__})
