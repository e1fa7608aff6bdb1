"""`python -m tests.bench.live_watchers`: watch sessions with many streams of one client.

The first line of standard input is a JSON object: the targets, a token, and the number of streams
for each session. A line is printed when all streams have begun. The second line is the number of
entries to wait for. Then the numbers of entries and of broken streams are printed.
"""

import asyncio
import json
import sys
from collections import Counter

from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.errors import MeshError

_STREAM_SECONDS = 3600.0
_WAIT_SECONDS = 60.0


class _Watchers:
    def __init__(self, count: int) -> None:
        self.counts: Counter[str] = Counter()
        self.have_begun = asyncio.Event()
        self._silent = count
        self._wanted: int | None = None
        self.have_all = asyncio.Event()

    async def watch(self, mesh: WireMesh, session_id: str) -> None:
        """Count the entries of one stream."""
        peer = mesh.service("session")
        method = SessionServiceStub(peer.channel).WatchSession
        request, is_silent = WatchSessionRequest(session_id=session_id, with_transcript=True), True
        try:
            async for answer in peer.stream(method, request, timeout_seconds=_STREAM_SECONDS):
                if is_silent:
                    is_silent = False
                    self._silent -= 1
                    if not self._silent:
                        self.have_begun.set()
                self.counts["entries"] += answer.HasField("entry_appended")
                self._check()
        except MeshError as error:
            print(error, file=sys.stderr)
            self.counts["broken"] += 1

    def want(self, count: int) -> None:
        """Set `have_all` as soon as there are so many entries."""
        self._wanted = count
        self._check()

    def _check(self) -> None:
        if self._wanted is not None and self.counts["entries"] >= self._wanted:
            self.have_all.set()


async def main() -> None:
    """Watch until the wanted entries have come, and print what came."""
    given = json.loads(await asyncio.to_thread(sys.stdin.readline))
    times: dict[str, int] = given["times"]
    watchers = _Watchers(sum(times.values()))
    async with connect_wire(
        session=given["session"], transcript=given["transcript"], token=given["token"]
    ) as mesh:
        streams = [
            asyncio.create_task(watchers.watch(mesh, session_id))
            for session_id, count in times.items()
            for _ in range(count)
        ]
        async with asyncio.timeout(_WAIT_SECONDS):
            await watchers.have_begun.wait()
        print("ready", flush=True)
        watchers.want(int(await asyncio.to_thread(sys.stdin.readline)))
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await watchers.have_all.wait()
        except TimeoutError:
            pass
        counts = dict(watchers.counts)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    print(json.dumps({"entries": 0, "broken": 0, **counts}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
