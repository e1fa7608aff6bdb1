"""Watch the demo's sessions live, and compare what came with what was stored."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest, WatchSessionResponse
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh_client.draft_content import DraftContent, content_of
from spawnmesh_client.wire import WireMesh


@dataclass(slots=True)
class Heard:
    """The entries and the answers that a watcher got while the session worked."""

    entries: list[Entry] = field(default_factory=list)
    piece_count: int = 0
    retracted_count: int = 0
    differing_count: int = 0
    """Answers that are not what came of them before."""
    _content: DraftContent = field(default_factory=DraftContent)

    def take(self, message: WatchSessionResponse) -> None:
        """Take over the next message of the session."""
        match message.WhichOneof("event"):
            case "draft_delta":
                delta = message.draft_delta
                if delta.begins_draft:
                    self._content = DraftContent()
                self._content.add(delta)
                self.piece_count += 1
            case "draft_retracted":
                self.retracted_count += 1
            case "entry_appended":
                appended = message.entry_appended
                self.entries.append(appended.entry)
                if appended.completes_draft and content_of(appended.entry.body.message) != self._content:
                    self.differing_count += 1

    def is_exactly(self, stored: Sequence[Entry]) -> bool:
        """Return whether the watcher got the stored entries, each once, and each answer exactly."""
        return not self.differing_count and self.entries == list(stored)


async def listen(mesh: WireMesh, session_id: str, heard: dict[str, Heard]) -> None:
    """Watch the session and those below it until all have ended."""
    request = WatchSessionRequest(session_id=session_id, with_transcript=True, with_descendants=True)
    async with aclosing(mesh.watch(request)) as messages:
        async for message in messages:
            heard.setdefault(message.session_id, Heard()).take(message)
