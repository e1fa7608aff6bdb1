"""Events of a run that are reported, and those that are left out."""

from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.session.v1 import run_event_pb2 as pb
from spawnmesh_client.run_events import RunEvents, chosen_model, decided_call

TIMEOUT = generation_pb2.FAILOVER_REASON_TIMEOUT


def test_failures_that_the_contract_would_refuse_are_mended_or_left_out() -> None:
    events = RunEvents()
    events.add_failure("", TIMEOUT)
    events.add_failure("m" * 257, TIMEOUT)
    newer: generation_pb2.FailoverReason.ValueType = 9999  # type: ignore[assignment]
    events.add_failure("p/one", newer)
    events.add_failure("p/two", TIMEOUT, 70000)
    failures = [event.model_failure for event in events._events]
    assert [(one.model, one.reason, one.http_status) for one in failures] == [
        ("m" * 256, "TIMEOUT", 0), ("p/one", "UNKNOWN", 0), ("p/two", "TIMEOUT", 0),
    ]  # fmt: skip


def test_decisions_name_so_many_plugins_at_most_and_at_least_one() -> None:
    events, call = RunEvents(), decided_call("run_command")
    events.add_decision([], blocked_call=call)
    events.add_decision([f"plugin-{number}" for number in range(65)], blocked_call=call)
    (event,) = events._events
    assert event.hook_decision.blocked_call == pb.DecidedCall(tool_name="run_command")
    assert (len(event.hook_decision.plugins), event.hook_decision.plugins[-1]) == (64, "plugin-63")


def test_a_name_that_a_terminal_obeys_is_mended() -> None:
    assert chosen_model("p/\x1b[31mone\u202e\n").model == "p/\ufffd[31mone\ufffd\ufffd"
    assert chosen_model("ü" * 200).model == "ü" * 128
