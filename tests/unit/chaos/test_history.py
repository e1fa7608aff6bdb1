"""The history of the load."""

import io
import json
from pathlib import Path

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.chaos.random_faults.history import History, Outcome, read_history


def test_call_has_its_times_and_its_answer() -> None:
    history = History()
    with history.call("spawn", "t-a", request_id="r") as call:
        call.got = {"session_id": "s"}
    [recorded] = history.of("spawn")
    assert recorded.is_ok
    assert recorded.start <= recorded.end
    assert (recorded.given, recorded.got) == ({"request_id": "r"}, {"session_id": "s"})


def test_refusal_had_no_effect_and_an_outage_may_have_had_one() -> None:
    history = History()
    for reason in (Reason.WRITER_CLAIM_LOST, Reason.DEPENDENCY_UNAVAILABLE, Reason.SPAWN_IN_PROGRESS):
        with history.call("append", "t-a"):
            raise MeshError(reason, "no")
    assert [call.outcome for call in history.calls] == [Outcome.REFUSED, Outcome.UNKNOWN, Outcome.UNKNOWN]


def test_file_has_each_call_on_a_line_and_can_be_read_again(tmp_path: Path) -> None:
    file = io.StringIO()
    history = History(file)
    for number in range(2):
        with history.call("send", "t-a", number=number):
            pass
    assert [json.loads(line)["given"]["number"] for line in file.getvalue().splitlines()] == [0, 1]
    (tmp_path / "history.jsonl").write_text(file.getvalue())
    assert read_history(tmp_path / "history.jsonl").calls == history.calls
