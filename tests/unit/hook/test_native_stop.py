"""Stop events of coding harnesses."""

import json
import re

import pytest
from spawnmesh_hook.domain.decisions import Decision, FinalizeAnswer
from spawnmesh_hook.domain.native_stop import NativeStop, parse_stop, render_answer, run_id_of


def test_a_stop_is_parsed() -> None:
    event = {
        "hook_event_name": "Stop",
        "session_id": "s",
        "turn_id": "t",
        "last_assistant_message": "done",
        "cwd": "/",
    }
    assert parse_stop(json.dumps(event)) == NativeStop("s", "t", "", "done")


@pytest.mark.parametrize("name", ["PreToolUse", "PostToolUse", "SessionStart"])
def test_other_events_are_ignored(name: str) -> None:
    assert parse_stop(json.dumps({"hook_event_name": name, "session_id": "s"})) is None


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "{}", '{"hook_event_name":7}', '{"hook_event_name":"Stop"}', "[" * 99_999]
)
def test_malformed_events_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_stop(text)


def test_texts_that_proto_cannot_hold_are_repaired() -> None:
    stop = parse_stop(
        '{"hook_event_name":"Stop","session_id":"s","last_assistant_message":"a\\u0000\\ud800"}'
    )
    assert stop == NativeStop("s", "", "", "a?")


def test_revisions_are_counted_by_turn() -> None:
    first, again = (
        parse_stop(json.dumps({"hook_event_name": "Stop", "session_id": "s", "stop_hook_active": active}))
        for active in (False, True)
    )
    assert first is not None
    assert again is not None
    assert run_id_of("CODEX", first) == run_id_of("CODEX", again)
    assert re.fullmatch(r"native_[0-9a-f]{32}", run_id_of("CODEX", first))
    others = [NativeStop("s", "t", "", ""), NativeStop("s", "", "a", ""), NativeStop("s2", "", "", "")]
    assert (
        len({run_id_of("CODEX", stop) for stop in (first, *others)} | {run_id_of("CLAUDE_CODE", first)}) == 5
    )


@pytest.mark.parametrize(
    ("answer", "reason", "output"),
    [
        (FinalizeAnswer.CONTINUE, "", None),
        (FinalizeAnswer.REVISE, 'say "why"', {"decision": "block", "reason": 'say "why"'}),
        (FinalizeAnswer.FINALIZE, "enough", {"continue": False, "stopReason": "enough"}),
        (FinalizeAnswer.FINALIZE, " \n", {"continue": False}),
    ],
)
def test_the_output_for_the_harness(answer: FinalizeAnswer, reason: str, output: object) -> None:
    text = render_answer(Decision(answer, reason, (), 0, False))
    assert (json.loads(text) if text else None) == output
