"""A session while it works: its states, its entries, and answers while models give them."""

from dataclasses import dataclass

from spawnmesh.session.v1 import session_pb2
from spawnmesh.transcript.v1 import live_service_pb2

from spawnmesh_client.entries import entry_view
from spawnmesh_client.live_streams import LiveMessage
from spawnmesh_client.view_of import view_of
from spawnmesh_client.views import Entry, SessionEvent


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """An event in the life of the session, such as a new state of a run."""

    cursor: str
    event: SessionEvent


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text of the answer that a model is giving, behind the earlier text of this draft.

    `model` is empty if the text comes from the stored answer.
    """

    cursor: str
    run_id: str
    model: str
    text: str
    begins_draft: bool


@dataclass(frozen=True, slots=True)
class DraftRetracted:
    """The text since the last `begins_draft` does not count. Take it back."""

    cursor: str
    run_id: str


@dataclass(frozen=True, slots=True)
class EntryAppended:
    """An entry of the transcript.

    With `completes_draft`, it is the answer whose text came before: its blocks of text, one behind
    the other, are exactly that. `Entry.text` has them on lines of their own.
    """

    cursor: str
    entry: Entry
    completes_draft: bool


LiveEvent = SessionChanged | TextDelta | DraftRetracted | EntryAppended
"""An event of `Session.live`. `cursor` is the position behind it, as text without a meaning."""


def live_event(message: LiveMessage) -> LiveEvent:
    """Return the view of a message."""
    match message.message:
        case session_pb2.SessionEvent() as event:
            return SessionChanged(message.cursor, view_of(SessionEvent, event))
        case live_service_pb2.DraftDelta() as delta:
            return view_of(TextDelta, delta, cursor=message.cursor)
        case live_service_pb2.DraftRetracted() as retracted:
            return DraftRetracted(message.cursor, retracted.run_id)
        case live_service_pb2.EntryAppended() as appended:
            return EntryAppended(message.cursor, entry_view(appended.entry), appended.completes_draft)
