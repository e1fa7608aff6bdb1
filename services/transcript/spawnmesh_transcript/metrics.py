"""Metrics of the transcript service, over all tenants."""

from opentelemetry.metrics import Meter


class StubMetrics:
    """Count how often large results are read as references, and how often the files behind these
    are read.
    """

    def __init__(self, meter: Meter) -> None:
        self._stubbed = meter.create_counter(
            "spawnmesh.transcript.stubbed.size",
            unit="By",
            description="Bytes of results for which contexts had references.",
        )
        self._drill_downs = meter.create_counter(
            "spawnmesh.transcript.drill_downs",
            unit="{read}",
            description="Described files, by requested part and by caller.",
        )
        self._stubbed.add(0)  # Otherwise a dashboard has no data before the first.

    def stubbed(self, size_bytes: int) -> None:
        """Count the bytes that a context has references for."""
        if size_bytes:
            self._stubbed.add(size_bytes)

    def drilled_down(self, *, part: str, caller: str) -> None:
        """Count a described file; `part` is none, start, bytes or lines."""
        self._drill_downs.add(
            1, {"spawnmesh.transcript.drill_down.part": part, "spawnmesh.caller.kind": caller}
        )


class CompactionMetrics:
    """Count compactions by outcome and method."""

    def __init__(self, meter: Meter) -> None:
        self._compactions = meter.create_counter(
            "spawnmesh.transcript.compactions",
            unit="{compaction}",
            description="Requested compactions, by outcome and by the method of the summary.",
        )

    def compacted(self, *, outcome: str, method: str = "none") -> None:
        """Count one; `outcome` is compacted, nothing, refused or failed; `method` normal,
        aggressive, excerpt or none.
        """
        self._compactions.add(
            1,
            {
                "spawnmesh.transcript.compaction.outcome": outcome,
                "spawnmesh.transcript.compaction.method": method,
            },
        )


class ExternalizationMetrics:
    """Count entries whose payloads were externalized, and failures."""

    def __init__(self, meter: Meter) -> None:
        self._entries = meter.create_counter(
            "spawnmesh.transcript.externalized.entries",
            unit="{entry}",
            description="Entries whose payloads were dropped from the database.",
        )
        self._size = meter.create_counter(
            "spawnmesh.transcript.externalized.size",
            unit="By",
            description="Bytes of payloads that were dropped from the database.",
        )
        self._failures = meter.create_counter(
            "spawnmesh.transcript.tier.failures",
            unit="{entry}",
            description="Entries whose payloads could not be moved between database and blob store.",
        )
        for counter in (self._entries, self._size, self._failures):
            counter.add(0)  # Otherwise a dashboard has no data before the first.

    def dropped(self, entry_count: int, size_bytes: int) -> None:
        """Count entries that got shorter, and by how many bytes together."""
        if entry_count:
            self._entries.add(entry_count)
            self._size.add(size_bytes)

    def failed(self, entry_count: int) -> None:
        """Count entries that were left as they were."""
        if entry_count:
            self._failures.add(entry_count)


class VerificationMetrics:
    """Count verified transcripts by outcome."""

    def __init__(self, meter: Meter) -> None:
        self._verified = meter.create_counter(
            "spawnmesh.transcript.verified_transcripts",
            unit="{transcript}",
            description="Transcripts whose hash chain was checked, by a worker or by VerifyTranscript.",
        )

        for is_intact in (True, False):
            self._count(0, is_intact=is_intact)  # Otherwise no alert would see the first one.

    def verified(self, *, is_intact: bool) -> None:
        """Count one that was read to its head, or to its first mismatch."""
        self._count(1, is_intact=is_intact)

    def _count(self, number: int, *, is_intact: bool) -> None:
        outcome = "intact" if is_intact else "mismatch"
        self._verified.add(number, {"spawnmesh.transcript.verification.outcome": outcome})


class SizeMetrics:
    """Measure the bytes of all transcripts; every worker measures the same."""

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
        """Set the current sizes."""
        self._logical.set(logical_bytes)
        self._stored.set(stored_bytes)
