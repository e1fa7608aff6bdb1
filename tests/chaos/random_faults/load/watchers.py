"""Clients that watch sessions, and clients that look for those of another tenant."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress

from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.transcript.v1.live_event_pb2 import EntryAppended
from spawnmesh_client.draft_content import DraftContent, content_of
from spawnmesh_client.live import ends_run
from spawnmesh_core.reasons import Reason

from tests.chaos.random_faults.history import Outcome
from tests.chaos.random_faults.load.calls import Client

_WATCH_SECONDS = 60.0
_WATCHERS = 4


async def watch_steadily(client: Client, other: Client) -> None:
    """Watch newest sessions of the other client of the same tenant to their ends, some at a time."""
    seen: set[str] = set()
    async with asyncio.TaskGroup() as group:
        for _ in range(_WATCHERS):
            group.create_task(_watch_newest(client, other, seen))


async def _watch_newest(client: Client, other: Client, seen: set[str]) -> None:
    while not client.stop.is_set():
        fresh = [session_id for session_id in other.accepted if session_id not in seen]
        if not fresh:
            await client.pause(0.2, 0.5)
            continue
        session_id = fresh[-1]
        seen.add(session_id)
        await _watch(client, "watch", session_id)


async def watch_again(client: Client, session_ids: Sequence[str]) -> None:
    """Watch ended sessions from their beginning. Each stream ends by itself."""
    await asyncio.gather(*(_watch(client, "watch again", session_id) for session_id in session_ids))


async def _watch(client: Client, operation: str, session_id: str) -> None:
    """Watch the session and those below it until the stream ends, or the time is over. The history
    has what came of each.
    """
    heard = Heard()
    with client.history.call(operation, client.tenant, session_id=session_id) as call:
        call.got = {"streams": heard.streams, "faults": heard.faults}
        with suppress(TimeoutError):
            async with asyncio.timeout(_WATCH_SECONDS):
                request = pb.WatchSessionRequest(
                    session_id=session_id, with_transcript=True, with_descendants=True
                )
                async with aclosing(client.mesh.watch(request)) as messages:
                    async for message in messages:
                        heard.take(message)
                call.got["has_ended"] = True
                heard.end()


class Heard:
    """The numbers of the events and the seqs of the entries of each session that a watcher got, and
    the texts that were wrong.
    """

    def __init__(self) -> None:
        self.streams: dict[str, dict[str, list[int]]] = {}
        self.faults: list[str] = []
        self._open: dict[str, tuple[str, DraftContent]] = {}

    def take(self, message: pb.WatchSessionResponse) -> None:
        """Take over the next message."""
        session_id = message.session_id
        stream = self.streams.setdefault(session_id, {"numbers": [], "seqs": []})
        match message.WhichOneof("event"):
            case "session_event":
                event = message.session_event
                stream["numbers"].append(event.number)
                if ends_run(event) and self._open.get(session_id, ("", None))[0] == event.run_id:
                    self._fault(session_id, f"ended {event.run_id} with an open draft")
            case "entry_appended":
                stream["seqs"].append(message.entry_appended.entry.seq)
                self._complete(session_id, message.entry_appended)
            case "draft_delta":
                delta = message.draft_delta
                if delta.begins_draft == (session_id in self._open):
                    self._fault(session_id, f"had a delta of {delta.run_id} out of place")
                _, content = self._open.setdefault(session_id, (delta.run_id, DraftContent()))
                content.add(delta)
            case "draft_retracted":
                if self._open.pop(session_id, None) is None:
                    self._fault(session_id, "retracted a draft that had not begun")

    def end(self) -> None:
        """Note the drafts that were neither confirmed nor retracted."""
        for session_id in self._open:
            self._fault(session_id, "left a draft open")

    def _complete(self, session_id: str, appended: EntryAppended) -> None:
        if not appended.completes_draft:
            return
        _, content = self._open.pop(session_id, ("", DraftContent()))
        if content != content_of(appended.entry.body.message):
            self._fault(session_id, f"completed another answer with seq {appended.entry.seq}")

    def _fault(self, session_id: str, what: str) -> None:
        self.faults.append(f"{session_id} {what}")


async def pry_steadily(client: Client, stranger: Client) -> None:
    """Ask for sessions of another tenant. The history has each answer."""
    while not client.stop.is_set():
        await client.pause(0.5, 1.5)
        if not stranger.accepted:
            continue
        session_id = client.random.choice(stranger.accepted)
        if client.random.random() < 0.5:
            method, request = client.sessions.GetSession, pb.GetSessionRequest(session_id=session_id)
        else:
            method, request = client.sessions.KillSession, pb.KillSessionRequest(session_id=session_id)
        call, _ = await client.call("pry", method, request, session_id=session_id)
        if call.outcome is Outcome.REFUSED and call.reason != str(Reason.NOT_FOUND):
            call.got = {"unexpected": call.reason}
