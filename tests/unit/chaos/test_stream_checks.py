"""I12: the check of watched streams finds each anomaly, and nothing in what faults may cause."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ContentBlock, Message, Text
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.session_service_pb2 import WatchSessionResponse
from spawnmesh.transcript.v1.entry_pb2 import Entry, EntryBody
from spawnmesh.transcript.v1.live_event_pb2 import DraftDelta, DraftRetracted, EntryAppended

from tests.chaos.random_faults.checks import streams
from tests.chaos.random_faults.facts import Facts
from tests.chaos.random_faults.load.watchers import Heard
from tests.support.chaos.sound_facts import CHILD, PARENT, sound


@dataclass(frozen=True)
class Anomaly:
    """A change to sound facts, and words of the line that the check must find."""

    name: str
    check: Callable[[Facts], list[str]]
    line: str
    seed: Callable[[Facts], Any]


def got(facts: Facts, place: int, operation: str = "watch") -> Any:
    return facts.of(operation)[place].got


def stream(facts: Facts, place: int, session_id: str = CHILD, operation: str = "watch") -> Any:
    return got(facts, place, operation)["streams"][session_id]


def again(facts: Facts, session_id: str) -> Any:
    return stream(facts, 0, session_id, "watch again")


ANOMALIES = [
    Anomaly("event twice", streams.check, "saw [1, 1]", lambda f: stream(f, 0).update(numbers=[1, 1])),
    Anomaly("event omitted", streams.check, "saw [2]", lambda f: stream(f, 0).update(numbers=[2])),
    Anomaly("early end", streams.check, "saw [1, 2]", lambda f: stream(f, 1).update(numbers=[1, 2])),
    Anomaly("entry twice", streams.check, "entries [1, 1]", lambda f: stream(f, 0).update(seqs=[1, 1])),
    Anomaly("entry omitted", streams.check, "entries [2]", lambda f: stream(f, 0).update(seqs=[2])),
    Anomaly("entry of nobody", streams.check, "3 are", lambda f: stream(f, 0).update(seqs=[1, 2, 3, 4])),
    Anomaly("wrong text", streams.check, "another text", lambda f: got(f, 0).update(faults=["another text"])),
    Anomaly("no event again", streams.check_again, "gave []", lambda f: again(f, PARENT).update(numbers=[])),
    Anomaly("no entry again", streams.check_again, "0 of 3", lambda f: again(f, CHILD).update(seqs=[])),
    Anomaly(
        "no end", streams.check_again, "did not end", lambda f: got(f, 0, "watch again").pop("has_ended")
    ),
    Anomaly(
        "no child",
        streams.check_again,
        f"nothing of {CHILD}",
        lambda f: got(f, 0, "watch again")["streams"].pop(CHILD),
    ),
]


@pytest.mark.parametrize("anomaly", ANOMALIES, ids=lambda anomaly: anomaly.name)
def test_anomaly_is_found(anomaly: Anomaly) -> None:
    facts = sound()
    anomaly.seed(facts)
    assert any(anomaly.line in line for line in anomaly.check(facts)), anomaly.check(facts)


def test_child_that_was_deleted_may_be_missing() -> None:
    facts = sound()
    facts.tables["sessions"] = [row for row in facts.rows("sessions") if row["session_id"] != CHILD]
    got(facts, 0, "watch again")["streams"].pop(CHILD)
    assert streams.check_again(facts) == []


def delta(text: str, *, begins: bool = False) -> WatchSessionResponse:
    return WatchSessionResponse(
        session_id="ses_1", draft_delta=DraftDelta(run_id="run_1", text=text, begins_draft=begins)
    )


def appended(text: str, *, completes: bool = True) -> WatchSessionResponse:
    message = Message(role=ROLE_ASSISTANT, content=[ContentBlock(text=Text(text=text))])
    entry = Entry(seq=1, body=EntryBody(message=message))
    return WatchSessionResponse(
        session_id="ses_1", entry_appended=EntryAppended(entry=entry, completes_draft=completes)
    )


RETRACTED = WatchSessionResponse(session_id="ses_1", draft_retracted=DraftRetracted(run_id="run_1"))
ENDED = WatchSessionResponse(
    session_id="ses_1",
    session_event=session_pb2.SessionEvent(
        number=1,
        kind=session_pb2.SESSION_EVENT_KIND_RUN,
        run_id="run_1",
        run_state=session_pb2.RUN_STATE_FAILED,
    ),
)


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([delta("a", begins=True), delta("b"), appended("ab"), ENDED], ""),
        ([delta("a", begins=True), RETRACTED, delta("b", begins=True), appended("b")], ""),
        ([appended("other", completes=False)], ""),
        ([delta("a", begins=True), appended("ab")], "another answer"),
        ([delta("a")], "out of place"),
        ([delta("a", begins=True), delta("b", begins=True)], "out of place"),
        ([RETRACTED], "had not begun"),
        ([delta("a", begins=True), ENDED], "open draft"),
        ([delta("a", begins=True)], "left a draft open"),
    ],
)
def test_watcher_notes_wrong_texts(messages: list[WatchSessionResponse], fault: str) -> None:
    heard = Heard()
    for message in messages:
        heard.take(message)
    heard.end()
    assert bool(heard.faults) == bool(fault)
    assert fault in "".join(heard.faults)
