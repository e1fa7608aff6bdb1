"""The order in which a watcher gets the events of a session and its transcript."""

from datetime import UTC, datetime

from spawnmesh.transcript.v1.live_event_pb2 import DraftDelta, DraftRetracted
from spawnmesh.transcript.v1.live_service_pb2 import WatchTranscriptResponse
from spawnmesh_session.domain.runs import RunState
from spawnmesh_session.domain.sessions import EventKind, SessionEvent
from spawnmesh_session.domain.watch_positions import MemberPosition
from spawnmesh_session.operations.member_feed import MemberFeed, Message

RUN_ID, OTHER_ID = "run_1", "run_2"


def run_event(number: int, state: RunState, run_id: str = RUN_ID) -> SessionEvent:
    return SessionEvent(number, datetime.now(UTC), EventKind.RUN, run_id, state, "", "", "")


def delta(text: str, *, begins: bool = False, run_id: str = RUN_ID) -> WatchTranscriptResponse:
    return WatchTranscriptResponse(
        cursor=text, draft_delta=DraftDelta(run_id=run_id, text=text, begins_draft=begins)
    )


def taken(feed: MemberFeed, response: WatchTranscriptResponse) -> list[Message]:
    return [message for message, _ in feed.take_response(response)]


def test_the_draft_of_a_run_that_has_ended_is_left_out_also_after_a_resume() -> None:
    feed = MemberFeed(MemberPosition())
    assert taken(feed, delta("On", begins=True)) == [DraftDelta(run_id=RUN_ID, text="On", begins_draft=True)]
    ended = run_event(1, RunState.KILLED)
    assert [message for message, _ in feed.take_event(ended)] == [DraftRetracted(run_id=RUN_ID), ended]
    resumed = MemberFeed(feed.position)
    for one in (feed, resumed):
        assert taken(one, delta("e")) == []
        assert taken(one, delta("Again", begins=True)) == []
        assert taken(one, delta("Two", begins=True, run_id=OTHER_ID)) != []


def test_each_message_moves_the_position_and_a_response_without_one_does_so_too() -> None:
    feed = MemberFeed(MemberPosition(after_seq=7))
    assert feed.read_seq == 7
    assert taken(feed, WatchTranscriptResponse(cursor="c", read_seq=7)) == []
    assert feed.position == MemberPosition(transcript_cursor="c", after_seq=7)
    ((_, position),) = feed.take_event(run_event(3, RunState.RUNNING))
    assert position == MemberPosition(3, "c", after_seq=7)
