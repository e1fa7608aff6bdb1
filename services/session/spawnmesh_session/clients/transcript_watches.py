"""Watches of transcripts, on connections of their own."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager

from spawnmesh.transcript.v1 import live_service_pb2 as pb
from spawnmesh.transcript.v1.live_service_pb2_grpc import LiveServiceStub
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process

CONNECTIONS = 4
"""The number of connections of the watches. A stream that is idle leaves other calls no place."""
STREAMS_OF_CONNECTION = 800
"""A server accepts 1,000 by default, and must have room for the health checks of the probe."""
_WATCH_SECONDS = 3600.0  # Longer than the token of the call is valid.
_RETRY_SECONDS = 5.0


@asynccontextmanager
async def open_transcript_watches(
    process: Process, target: str, timeout_seconds: float
) -> "AsyncIterator[TranscriptWatches]":
    """Open the connections, each of which connects at its first call. `timeout_seconds` is for the
    calls that are no watches.
    """
    async with AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(open_peer(process, "transcript", target, is_dependency=False))
            for _ in range(CONNECTIONS)
        ]
        yield TranscriptWatches(peers, timeout_seconds)


class TranscriptWatches:
    """Watches transcripts through these peers. A tenant has half of the places at most."""

    def __init__(self, peers: Sequence[Peer], timeout_seconds: float) -> None:
        self._peers, self._timeout_seconds = peers, timeout_seconds
        self._open_counts = [0] * len(peers)
        self._tenant_counts: Counter[str] = Counter()

    async def head_seq(self, session_id: str) -> int:
        """Return the seq of the newest entry. Raise NOT_FOUND if there is no transcript."""
        peer = self._peers[0]
        request = pb.GetHeadSeqRequest(session_id=session_id)
        method = LiveServiceStub(peer.channel).GetHeadSeq
        return (await peer.unary(method, request, timeout_seconds=self._timeout_seconds)).seq

    async def watch(
        self, tenant_id: str, session_id: str, cursor: str, after_seq: int
    ) -> AsyncGenerator[pb.WatchTranscriptResponse, None]:
        """Yield entries and drafts behind the cursor, or without one behind the seq, without end.

        Raise NOT_FOUND when the transcript is deleted, INVALID_REQUEST for a cursor of another
        session, and POOL_EXHAUSTED if all places are taken.
        """
        with self._place(tenant_id) as peer:
            method = LiveServiceStub(peer.channel).WatchTranscript
            while True:
                request = pb.WatchTranscriptRequest(session_id=session_id, cursor=cursor, after_seq=after_seq)
                responses = peer.stream(method, request, timeout_seconds=_WATCH_SECONDS)
                is_accepted = False
                try:
                    async with aclosing(responses):
                        async for response in responses:
                            cursor, is_accepted = response.cursor, True
                            yield response
                    raise unavailable("transcript")
                except MeshError as error:
                    # The token of a service is valid for minutes. The next call has a new one.
                    if error.reason is not Reason.TOKEN_EXPIRED or not is_accepted:
                        raise

    @contextmanager
    def _place(self, tenant_id: str) -> Iterator[Peer]:
        """Take a place on the connection that has most of them left."""
        least = min(range(len(self._peers)), key=self._open_counts.__getitem__)
        tenant_limit = STREAMS_OF_CONNECTION * len(self._peers) // 2
        if (
            self._open_counts[least] >= STREAMS_OF_CONNECTION
            or self._tenant_counts[tenant_id] >= tenant_limit
        ):
            raise MeshError(
                Reason.POOL_EXHAUSTED,
                "too many transcripts are watched at this replica; call again later",
                retry_after_seconds=_RETRY_SECONDS,
            )
        self._open_counts[least] += 1
        self._tenant_counts[tenant_id] += 1
        try:
            yield self._peers[least]
        finally:
            self._open_counts[least] -= 1
            self._tenant_counts[tenant_id] -= 1
            if not self._tenant_counts[tenant_id]:
                del self._tenant_counts[tenant_id]
