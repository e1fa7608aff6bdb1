"""The order in which a watcher gets the events of a session and its transcript."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from spawnmesh.transcript.v1.live_event_pb2 import DraftDelta, DraftRetracted, EntryAppended
from spawnmesh.transcript.v1.live_service_pb2 import WatchTranscriptResponse

from spawnmesh_session.domain.runs import TERMINAL_RUN_STATES
from spawnmesh_session.domain.sessions import TERMINAL_EVENT_KINDS, EventKind, SessionEvent
from spawnmesh_session.domain.watch_positions import MemberPosition

Message = SessionEvent | EntryAppended | DraftDelta | DraftRetracted
"""A message of a watch."""
Step = tuple[Message, MemberPosition]
"""A message, and the position behind it."""


def ends_run(event: SessionEvent) -> bool:
    """Return whether a run of the session has ended with the event."""
    # The event of a child's result has the state of the child's run.
    return event.kind is EventKind.RUN and event.run_state in TERMINAL_RUN_STATES


@dataclass(slots=True)
class MemberFeed:
    """The state of one watcher of a session.

    Give it the responses of WatchTranscript and the events, each of these once `read_seq` is not
    before it. Each message comes with the position behind it.
    """

    position: MemberPosition
    read_seq: int = field(init=False)
    _ended_run_ids: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.read_seq = self.position.after_seq
        self._ended_run_ids.add(self.position.ended_run_id)

    def take_response(self, response: WatchTranscriptResponse) -> Iterator[Step]:
        """Go on behind the response, and yield its message, if it has one that counts."""
        self.read_seq = response.read_seq
        self.position = replace(self.position, transcript_cursor=response.cursor)
        match response.WhichOneof("event"):
            case "draft_delta":
                delta = response.draft_delta
                # The transcript may keep the draft of a run that has ended. It was retracted here.
                begins = delta.begins_draft and delta.run_id not in self._ended_run_ids
                if begins or (not delta.begins_draft and delta.run_id == self.position.open_run_id):
                    yield self._with_draft_of(delta.run_id, delta)
            case "draft_retracted":
                yield from self.retract()
            case "entry_appended":
                appended, open_run_id = response.entry_appended, self.position.open_run_id
                if appended.completes_draft:
                    appended.completes_draft, open_run_id = bool(open_run_id), ""
                yield self._with_draft_of(open_run_id, appended)

    def take_event(self, event: SessionEvent) -> Iterator[Step]:
        """Go on behind the event, and yield it.

        All entries before the end of a run were taken, so none can complete its draft any more.
        """
        is_end = ends_run(event)
        is_over = event.kind in TERMINAL_EVENT_KINDS
        if is_over or (is_end and event.run_id == self.position.open_run_id):
            yield from self.retract()
        if is_end:
            self._ended_run_ids.add(event.run_id)
            self.position = replace(self.position, ended_run_id=event.run_id)
        self.position = replace(self.position, event_number=event.number)
        yield event, self.position

    def retract(self) -> Iterator[Step]:
        """Take the open draft back, if there is one."""
        if run_id := self.position.open_run_id:
            yield self._with_draft_of("", DraftRetracted(run_id=run_id))

    def _with_draft_of(self, run_id: str, message: Message) -> Step:
        self.position = replace(self.position, open_run_id=run_id)
        return message, self.position
