"""Compare the beginning of a stream with the part of the file that an import already has."""

from functools import partial

from spawnmesh.transcript.v1 import archive_service_pb2 as archive_pb
from spawnmesh_core.line_chain import LineChain

from spawnmesh_transcript.domain.refusals import import_content_differs, import_offset_differs
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.session_files.import_threads import ImportThreads
from spawnmesh_transcript.store.imports import ImportProgress

_BYTES_AT_ONCE = 64 * 1024  # They may be as many lines, and each line costs a hash.


class ImportPrefix:
    """Skip what is stored already. Keep nothing of it but a hash."""

    def __init__(
        self, threads: ImportThreads, key: Key, stored: ImportProgress, sent: archive_pb.SentBytes | None
    ) -> None:
        """Begin after the bytes of `sent`.

        Raises IMPORT_OFFSET_DIFFERS and IMPORT_CONTENT_DIFFERS.
        """
        self._threads = threads
        self._key = key
        self._stored = stored
        self._chain = LineChain()
        self.end = 0
        """The position of the stream in the file."""
        if sent is None:
            return
        if sent.size_bytes != stored.byte_count:
            raise import_offset_differs(stored.byte_count)
        self._compare(sent.line_chain)
        self.end = sent.size_bytes

    def misplaced(self, offset: int, durable_bytes: int) -> Exception:
        """Return the error of a chunk whose offset is not the position of the stream."""
        if self.end == 0 and offset == self._stored.byte_count:
            return self._differs("name them in `sent` to resume after them")
        return import_offset_differs(durable_bytes)

    async def skip(self, data: bytes) -> bytes:
        """Return the part of the stream's next bytes that is not stored.

        Raises IMPORT_CONTENT_DIFFERS.
        """
        stored = self._stored
        repeated = data[: max(0, stored.byte_count - self.end)]
        self.end += len(data)
        if repeated:
            for start in range(0, len(repeated), _BYTES_AT_ONCE):
                piece = repeated[start : start + _BYTES_AT_ONCE]
                await self._threads.run_in_thread(self._key.tenant_id, partial(self._chain.update, piece))
            if self.end >= stored.byte_count:
                self._compare(self._chain.value)
        if stored.state == "COMPLETE" and self.end > stored.byte_count:
            raise self._differs("the stream has more")
        return data[len(repeated) :]

    def finish(self) -> None:
        """End the file here. Raises IMPORT_CONTENT_DIFFERS if the import has more."""
        if self.end < self._stored.byte_count:
            raise self._differs("the stream has less")

    def _compare(self, line_chain: bytes) -> None:
        if line_chain != self._stored.line_chain:
            raise self._differs("they are of another file")

    def _differs(self, why: str) -> Exception:
        return import_content_differs(self._key.session_id, self._stored.byte_count, why)
