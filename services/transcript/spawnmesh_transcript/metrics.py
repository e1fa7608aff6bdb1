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


class CompactionMetrics:
    """How often transcripts are compacted, and what comes of it."""

    def __init__(self, meter: Meter) -> None:
        self._compactions = meter.create_counter(
            "spawnmesh.transcript.compactions",
            unit="{compaction}",
            description="Compactions that were asked for, by what came of them and by how the summary was made.",
        )

    def compacted(self, *, outcome: str, method: str = "none") -> None:
        """`outcome` is compacted, nothing, refused or failed; `method` normal, aggressive, excerpt or none."""
        self._compactions.add(
            1,
            {"spawnmesh.transcript.compaction.outcome": outcome, "spawnmesh.transcript.compaction.method": method},
        )


class CoolingMetrics:
    """What was moved out of the database, and what could not be."""

    def __init__(self, meter: Meter) -> None:
        self._entries = meter.create_counter(
            "spawnmesh.transcript.cooled.entries",
            unit="{entry}",
            description="Entries whose payloads were dropped from the database, since the blob store has them.",
        )
        self._size = meter.create_counter(
            "spawnmesh.transcript.cooled.size",
            unit="By",
            description="Bytes that were dropped from the database, since the blob store has them.",
        )
        self._failures = meter.create_counter(
            "spawnmesh.transcript.tier.failures",
            unit="{entry}",
            description="Entries whose payloads could not be moved between the database and the blob store; they are as they were.",
        )

    def cooled(self, entry_count: int, size_bytes: int) -> None:
        """So many entries got shorter, by so many bytes together."""
        if entry_count:
            self._entries.add(entry_count)
            self._size.add(size_bytes)

    def failed(self, entry_count: int) -> None:
        """So many were left as they were."""
        if entry_count:
            self._failures.add(entry_count)


class SizeMetrics:
    """What transcripts take, of all tenants; every worker measures the same."""

    def __init__(self, meter: Meter) -> None:
        self._logical = meter.create_gauge(
            "spawnmesh.transcript.logical.size",
            unit="By",
            description="Bytes of all entries as their readers see them.",
        )
        self._stored = meter.create_gauge(
            "spawnmesh.transcript.stored.size",
            unit="By",
            description="Bytes of all entries that are in the database; the rest is in the blob store alone.",
        )

    def measured(self, *, logical_bytes: int, stored_bytes: int) -> None:
        """They are so many now."""
        self._logical.set(logical_bytes)
        self._stored.set(stored_bytes)
