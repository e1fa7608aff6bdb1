"""The pure rules of a run."""

import pytest
from spawnmesh_client.run_compaction import RunCompactions, fresh_tail_token_count
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import STATUS_OF
from spawnmesh_runner.domain.failure import (
    Delay,
    McpServerNotOffered,
    ModelCallTimedOut,
    describe_failure,
    find_delay,
)
from spawnmesh_runner.domain.reasons import TRANSIENT
from spawnmesh_runner.domain.request_ids import answer_request_id, call_request_id, result_request_id
from spawnmesh_runner.domain.tools import ToolRefused
from spawnmesh_runner.domain.turns import (
    LATE_TURN_COUNT,
    NoProgress,
    OutputLimitReached,
    RepeatedCalls,
    TurnBudget,
    TurnLimitExceeded,
)
from spawnmesh_runner.domain.usage import UsageTotal

RUN = "run_" + "0" * 26
ENTRY = "ent_" + "0" * 26


def test_keys_differ_by_epoch_and_turn_and_fit_the_contracts() -> None:
    keys = {answer_request_id(RUN, epoch, turn) for epoch in (1, 2, 12) for turn in (1, 2, 21)}
    assert len(keys) == 9
    assert all(len(key) <= 128 for key in [*keys, result_request_id(ENTRY, 255), call_request_id(ENTRY, 255)])


def test_calls_of_one_answer_have_different_request_ids() -> None:
    assert call_request_id(ENTRY, 0) != call_request_id(ENTRY, 1)
    assert call_request_id(ENTRY, 0) == call_request_id(ENTRY, 0)


def test_a_mesh_error_fails_the_run_with_its_reason_on_one_line() -> None:
    failure = describe_failure(MeshError(Reason.ALL_CANDIDATES_FAILED, "nobody\nanswered " + "x" * 2000))
    assert failure.reason == "ALL_CANDIDATES_FAILED"
    assert failure.message.startswith("nobody answered xx")
    assert len(failure.message) == 1000


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        (TurnLimitExceeded(50), Reason.TURN_LIMIT_EXCEEDED, "no answer within 50 turns"),
        (OutputLimitReached("a/b", 3), Reason.OUTPUT_LIMIT_REACHED, "a/b reached its output limit"),
        (McpServerNotOffered(["one", "two"]), Reason.MCP_SERVER_NOT_OFFERED, "agent names: one, two"),
    ],
)
def test_an_error_of_the_run_is_its_reason_and_its_text(error: Exception, reason: str, message: str) -> None:
    failure = describe_failure(error)
    assert failure.reason == reason
    assert message in failure.message


def test_long_name_of_a_model_does_not_make_a_long_message() -> None:
    assert len(describe_failure(OutputLimitReached("m" * 2000, 3)).message) == 1000


def test_refused_tool_call_says_its_reason_and_its_message() -> None:
    refused = ToolRefused("NO_SUCH_FILE", "there is no file a.txt")
    assert (refused.reason, str(refused)) == ("NO_SUCH_FILE", "NO_SUCH_FILE: there is no file a.txt")


@pytest.mark.parametrize(("taken", "left"), [(2, 1), (3, LATE_TURN_COUNT), (5, LATE_TURN_COUNT - 2)])
def test_late_messages_give_late_turns_once(taken: int, left: int) -> None:
    turns = TurnBudget(3, taken_count=taken)
    turns.record_late_messages()
    turns.record_late_messages()
    took = 0
    while turns.has_turn_left:
        turns.taken_count += 1
        took += 1
    assert took == left


@pytest.mark.parametrize("error", [OSError(2, "no such file", "/secret/path"), ValueError("the content")])
def test_the_text_of_other_errors_is_hidden(error: Exception) -> None:
    failure = describe_failure(error)
    assert failure.reason == Reason.RUNNER_ERROR
    assert "secret" not in failure.message
    assert "content" not in failure.message


def test_usage_is_summed() -> None:
    spending = UsageTotal()
    spending.add(input_=1, output=2, cache_read=3, cache_write=4, cost_micros=5, price_version="1")
    spending.add(input_=10, output=20, cache_read=30, cache_write=40, cost_micros=50, price_version="2")
    spending.add(input_=0, output=0, cache_read=0, cache_write=0, cost_micros=0, price_version="")
    assert spending == UsageTotal(11, 22, 33, 44, 55, "2")


def test_a_small_budget_has_a_shorter_fresh_tail() -> None:
    assert [fresh_tail_token_count(budget) for budget in (1, 20_000, 96_000, 1_000_000)] == [
        1,
        5_000,
        24_000,
        24_000,
    ]


def test_compactions_stop_after_a_few_failures() -> None:
    assert [RunCompactions(failed_count).may_try for failed_count in range(4)] == [
        True,
        True,
        False,
        False,
    ]


def test_only_repeats_in_a_row_are_no_progress() -> None:
    calls = RepeatedCalls()
    for digest in "aaabaaabbb":
        calls.record(digest, ["read_file"])
    with pytest.raises(NoProgress, match=r"of read_file with .* 3 times in a row") as raised:
        calls.record("b", ["read_file", "read_file"])
    assert describe_failure(raised.value).reason == Reason.NO_PROGRESS


@pytest.mark.parametrize("reason", sorted(TRANSIENT))
def test_a_transient_error_delays_the_run(reason: Reason) -> None:
    error = MeshError(reason, "not\nnow", retry_after_seconds=3)
    assert find_delay(error, 10) == Delay(reason.value, "not now", 3)
    assert find_delay(error, 3) is None, "the pause would end after the deadline, which is near"
    distant = MeshError(reason, "not now", retry_after_seconds=3600)
    assert find_delay(distant, 60) == Delay(reason.value, "not now", 30)


@pytest.mark.parametrize("reason", sorted(set(STATUS_OF) - set(TRANSIENT)))
def test_another_error_delays_the_run_only_if_it_says_so(reason: Reason) -> None:
    assert find_delay(MeshError(reason, "no"), 10) is None
    assert find_delay(MeshError(reason, "no", facts={"is_transient": "false"}), 10) is None
    assert find_delay(MeshError(reason, "no", facts={"is_transient": "true"}), 10) == Delay(
        reason.value, "no", 0
    )


def test_a_model_call_that_took_all_its_time_delays_nothing() -> None:
    error = ModelCallTimedOut(MeshError(Reason.DEADLINE_EXCEEDED, "no answer in time"))
    assert find_delay(error, 10) is None
    assert describe_failure(error).reason == "DEADLINE_EXCEEDED"
