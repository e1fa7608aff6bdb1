"""Watch the demo's sessions live, and compare what came with what was stored."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from spawnmesh.content.v1 import message_pb2
from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest, WatchSessionResponse
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh_client.wire import WireMesh


@dataclass(slots=True)
class Heard:
    """The entries and the text that a watcher got while the session worked."""

    entries: list[Entry] = field(default_factory=list)
    piece_count: int = 0
    retracted_count: int = 0
    differing_count: int = 0
    """Answers whose text is not what came of them before."""
    _text: str = ""

    def take(self, message: WatchSessionResponse) -> None:
        """Take over the next message of the session."""
        match message.WhichOneof("event"):
            case "draft_delta":
                delta = message.draft_delta
                self._text = delta.text if delta.begins_draft else self._text + delta.text
                self.piece_count += 1
            case "draft_retracted":
                self.retracted_count += 1
            case "entry_appended":
                appended = message.entry_appended
                self.entries.append(appended.entry)
                if appended.completes_draft and _text_of(appended.entry) != self._text:
                    self.differing_count += 1

    def is_exactly(self, stored: Sequence[Entry]) -> bool:
        """Return whether the watcher got the stored entries, each once, and of each answer exactly
        its text.
        """
        return not self.differing_count and self.entries == list(stored)


async def listen(mesh: WireMesh, session_id: str, heard: dict[str, Heard]) -> None:
    """Watch the session and those below it until all have ended."""
    request = WatchSessionRequest(session_id=session_id, with_transcript=True, with_descendants=True)
    async with aclosing(mesh.watch(request)) as messages:
        async for message in messages:
            heard.setdefault(message.session_id, Heard()).take(message)


def _text_of(entry: Entry) -> str:
    message = entry.body.message
    is_answer = message.role == message_pb2.ROLE_ASSISTANT
    return "".join(block.text.text for block in message.content) if is_answer else ""
