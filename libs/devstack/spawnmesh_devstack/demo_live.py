"""Watch the demo's first session live, and compare what came with what was stored."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from spawnmesh.content.v1 import message_pb2
from spawnmesh.session.v1.session_pb2 import SessionEvent
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh.transcript.v1.live_service_pb2 import DraftDelta, DraftRetracted, EntryAppended
from spawnmesh_client.live_streams import ends_run, live_messages
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

    def take(self, message: SessionEvent | DraftDelta | DraftRetracted | EntryAppended) -> None:
        """Take over the next message of the stream."""
        match message:
            case DraftDelta():
                self._text = message.text if message.begins_draft else self._text + message.text
                self.piece_count += 1
            case DraftRetracted():
                self.retracted_count += 1
            case EntryAppended():
                self.entries.append(message.entry)
                if message.completes_draft and _text_of(message.entry) != self._text:
                    self.differing_count += 1

    def is_exactly(self, stored: Sequence[Entry]) -> bool:
        """Return whether the watcher got the stored entries, each once, and of each answer exactly
        its text.
        """
        return not self.differing_count and self.entries == list(stored)


async def listen(mesh: WireMesh, session_id: str, heard: Heard) -> None:
    """Watch the session until its run has ended."""
    async with aclosing(live_messages(mesh, session_id)) as messages:
        async for one in messages:
            heard.take(one.message)
            if isinstance(one.message, SessionEvent) and ends_run(one.message):
                return


def _text_of(entry: Entry) -> str:
    message = entry.body.message
    is_answer = message.role == message_pb2.ROLE_ASSISTANT
    return "".join(block.text.text for block in message.content) if is_answer else ""
