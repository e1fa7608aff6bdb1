"""The part of a file that an import has already, as a new stream names it or sends it again."""

from functools import partial

from spawnmesh.transcript.v1 import archive_service_pb2 as archive_pb
from spawnmesh_core.line_chain import LineChain

from spawnmesh_transcript.domain.refusals import import_content_differs, import_offset_differs
from spawnmesh_transcript.import_store import Progress
from spawnmesh_transcript.import_threads import ImportThreads
from spawnmesh_transcript.store import Key

_BYTES_AT_ONCE = 64 * 1024  # They may be as many lines, each of which costs a hash.


class Beginning:
    """Compares what a stream begins with and what is stored. Keeps nothing of it, and lets through what is behind."""

    def __init__(self, threads: ImportThreads, key: Key, stored: Progress, sent: archive_pb.SentBytes | None) -> None:
        """`sent` is what the stream goes on behind. Raises IMPORT_OFFSET_DIFFERS and IMPORT_CONTENT_DIFFERS."""
        self._threads = threads
        self._key = key
        self._stored = stored
        self._chain = LineChain()
        self.end = 0
        """How far in the file the stream is."""
        if sent is None:
            return
        if sent.size_bytes != stored.byte_count:
            raise import_offset_differs(stored.byte_count)
        self._compare(sent.line_chain)
        self.end = sent.size_bytes

    def misplaced(self, offset: int, durable_bytes: int) -> Exception:
        """The refusal of bytes that begin there, and not where the stream is."""
        if self.end == 0 and offset == self._stored.byte_count:
            return self._differs("say by `sent` which they are, to go on behind them")
        return import_offset_differs(durable_bytes)

    async def behind(self, data: bytes) -> bytes:
        """What of the stream's next bytes is behind what is stored. Raises IMPORT_CONTENT_DIFFERS."""
        stored = self._stored
        again = data[: max(0, stored.byte_count - self.end)]
        self.end += len(data)
        if again:
            for start in range(0, len(again), _BYTES_AT_ONCE):
                piece = again[start : start + _BYTES_AT_ONCE]
                await self._threads.run(self._key.tenant_id, partial(self._chain.update, piece))
            if self.end >= stored.byte_count:
                self._compare(self._chain.value)
        if stored.state == "COMPLETE" and self.end > stored.byte_count:
            raise self._differs("which is less than came")
        return data[len(again) :]

    def finish(self) -> None:
        """The file ends here. Raises IMPORT_CONTENT_DIFFERS where the import has more."""
        if self.end < self._stored.byte_count:
            raise self._differs("which is more than came")

    def _compare(self, line_chain: bytes) -> None:
        if not self._stored.is_comparable:
            raise self._differs("which cannot be compared, since a version before made it")
        if line_chain != self._stored.line_chain:
            raise self._differs("of another file")

    def _differs(self, why: str) -> Exception:
        return import_content_differs(self._key.session_id, self._stored.byte_count, why)
