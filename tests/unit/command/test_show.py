"""Output for people."""

import time

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.content.v1.message_pb2 import ContentBlock, Image, Message, Role, Text, Thinking, ToolCall
from spawnmesh.hook.v1.revision_pb2 import CappedRevision, RevisionCap
from spawnmesh.session.v1.session_pb2 import Run, RunState, Session
from spawnmesh.transcript.v1.entry_pb2 import Entry, EntryBody, Header, Label, LabelKind, SystemNote
from spawnmesh_command.cli.entries import entry_text
from spawnmesh_command.cli.show import print_session, when


@pytest.fixture
def in_karachi(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Karachi")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_karachi")
def test_times_are_local():
    assert when(Timestamp(seconds=1_700_000_000)) == "2023-11-15 03:13:20"
    assert when(Timestamp()) == ""


TOOL_RESULT = Message(
    role=Role.ROLE_TOOL_RESULT,
    tool_name="read_file",
    is_error=True,
    content=[ContentBlock(text=Text(text="no"))],
)
ANSWER = Message(
    role=Role.ROLE_ASSISTANT,
    content=[
        ContentBlock(thinking=Thinking(text="hm" * 300)),
        ContentBlock(tool_call=ToolCall(tool_call_id="1", name="read_file", block_json="{}")),
        ContentBlock(image=Image(mime_type="image/png", data=b"123")),
    ],
)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (EntryBody(header=Header(forked_from_session_id="ses_1")), ("header", "forked from ses_1")),
        (
            EntryBody(system_note=SystemNote(topic="attachments", text="2 files")),
            ("note: attachments", "2 files"),
        ),
        (
            EntryBody(label=Label(kind=LabelKind.LABEL_KIND_SUPERSEDED, entry_id="ent_1")),
            ("superseded", "ent_1"),
        ),
        (EntryBody(message=TOOL_RESULT), ("tool result (read_file, failed)", "no")),
        (
            EntryBody(message=ANSWER),
            ("assistant", f"[thinking] {'hm' * 200}…\n[calls read_file] {{}}\n[image, image/png, 3 bytes]"),
        ),
        (EntryBody(), ("of a kind this client does not know", "")),
    ],
)
def test_every_kind_of_entry_is_printed(body, told):
    assert entry_text(Entry(body=body)) == told


@pytest.mark.parametrize(
    ("cap", "why"),
    [
        (RevisionCap.REVISION_CAP_RUN, "the run had all its revisions"),
        (
            RevisionCap.REVISION_CAP_OBJECTION_KEY,
            "the attempts for its objection key were used up",
        ),
        (RevisionCap.REVISION_CAP_FINAL_EFFECTS, "the run had effects that cannot be undone"),
        (RevisionCap.REVISION_CAP_LAST_TURN, "the run had no turn left"),
        (99, "a bound was reached"),
    ],
)
def test_a_session_says_which_plugin_wanted_a_revision_that_was_not_granted(cap, why, capsys):
    run = Run(
        run_id="run_1",
        state=RunState.RUN_STATE_SUCCEEDED,
        result_text="42",
        capped_revisions=[CappedRevision(plugin="gate", cap=cap)],
    )
    print_session(Session(session_id="ses_1", latest_run=run))
    assert f"the plugin gate wanted a revision, but {why}\n" in capsys.readouterr().out


def test_every_cap_is_explained(capsys):
    caps = [cap for cap in RevisionCap.values() if cap]
    run = Run(capped_revisions=[CappedRevision(plugin="gate", cap=cap) for cap in caps])
    print_session(Session(latest_run=run))
    assert "a bound was reached" not in capsys.readouterr().out
