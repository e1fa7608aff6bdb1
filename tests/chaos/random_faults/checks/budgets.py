"""Budgets count each model call of their families, and no run waits although there is room.

The row of a budget is compared with the runs and transcripts of the sessions that share it, with the
calls of the people who raised it, and with the events of its session. Runs report less than budgets
count: a runner that is lost reports nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT

from tests.chaos.random_faults.checks.entry_texts import message_of
from tests.chaos.random_faults.facts import Facts, Row
from tests.chaos.random_faults.history import Call, Outcome

_LIMITS = {
    "max_token_count": "used_token_count",
    "max_cost_micros": "used_cost_micros",
    "max_model_call_count": "used_model_call_count",
    "max_run_time": "used_run_time",
}
_RAISED = ("max_model_call_count", "max_token_count")
_HAS_ROOM = "the budget has room"

Limits = tuple[int, ...]
"""The values of `_RAISED`."""


def check(facts: Facts) -> list[str]:
    """Check what each budget counts, its changes, and the runs that waited for it."""
    return [
        *_wrong_waits(facts),
        *_uncounted(facts),
        *_forgotten_calls(facts),
        *_wrong_changes(facts),
        *_wrong_limits(facts),
    ]


def _wrong_waits(facts: Facts) -> Iterator[str]:
    """Look for runs that wait in vain, and for runs that went on more often than they waited."""
    full = {row["session_id"] for row in facts.rows("budgets") if _is_reached(row)}
    shared = {row["session_id"]: row["budget_session_ids"] for row in facts.rows("sessions")}
    for run in facts.rows("runs"):
        if run["state"] == "WAITING_BUDGET" and not full & {*shared.get(run["session_id"], ())}:
            yield f"{run['run_id']} waits for {run['budget_session_id']}, and its budgets have room"
    waits, ends = Counter[str](), Counter[str]()
    for row in facts.rows("events"):
        waits[row["run_id"]] += row["run_state"] == "WAITING_BUDGET"
        ends[row["run_id"]] += row["run_state"] == "QUEUED" and row["detail"] == _HAS_ROOM
    for run_id, count in ends.items():
        if count > waits[run_id]:
            yield f"{run_id} waited {waits[run_id]} times for a budget, and was queued {count} times after it"


def _uncounted(facts: Facts) -> Iterator[str]:
    """Look for tokens, costs and model calls that are in runs and transcripts, and in no budget."""
    runs, answers = defaultdict[str, list[Row]](list), Counter[str]()
    for run in facts.rows("runs"):
        runs[run["session_id"]].append(run["usage"])
    for row in facts.rows("entries"):
        answers[row["session_id"]] += not row["is_synthetic"] and message_of(row).role == ROLE_ASSISTANT
    for budget in facts.rows("budgets"):
        family = {
            row["session_id"]
            for row in facts.rows("sessions")
            if budget["session_id"] in row["budget_session_ids"]
        }
        usages = [usage for session_id in family for usage in runs[session_id]]
        # The router was lost before it reported them: a job counts them later.
        open_calls = [row for row in facts.rows("model_calls") if row["session_id"] in family]
        at_least = {
            "used_token_count": _sum(usages, "input_token_count", "output_token_count")
            - sum(call["largest_token_count"] for call in open_calls),
            "used_cost_micros": _sum(usages, "cost_micros")
            - sum(call["largest_cost_micros"] for call in open_calls),
            "used_model_call_count": sum(answers[session_id] for session_id in family),
        }
        for name, count in at_least.items():
            if budget[name] < count:
                yield f"the budget of {budget['session_id']} has {name} {budget[name]}, and its family {count}"


def _sum(usages: list[Row], *names: str) -> int:
    """Return the sum over the usage of runs. That of a run which was killed is empty."""
    return sum(usage.get(name, 0) for usage in usages for name in names)


def _forgotten_calls(facts: Facts) -> Iterator[str]:
    """Look for model calls that are neither counted nor going to be."""
    for row in facts.rows("model_calls"):
        if row["due_time"] is None:
            yield f"{row['call_id']} of {row['run_id']} is not counted, and no job counts it"
        elif row["is_late"]:
            yield f"{row['call_id']} of {row['run_id']} was not counted at {row['due_time']}"


def _wrong_changes(facts: Facts) -> Iterator[str]:
    """Compare the changes of each budget with the events of its session."""
    told = Counter(row["session_id"] for row in facts.rows("events") if row["kind"] == "BUDGET_CHANGED")
    for row in facts.rows("budgets"):
        changes = row["version"] - 1
        if told[row["session_id"]] != changes:
            yield f"the budget of {row['session_id']} changed {changes} times, told {told[row['session_id']]}"


def _wrong_limits(facts: Facts) -> Iterator[str]:
    """Compare the limits of each budget with the spawn, and with the calls that raised it."""
    spawns = {call.given["request_id"]: _limits(call.given["budget"]) for call in facts.of("spawn")
              if "budget" in call.given}  # fmt: skip
    requests = {row["session_id"]: row["request_id"] for row in facts.rows("sessions")}
    raised: dict[str, list[Call]] = defaultdict(list)
    for call in facts.of("raise"):
        raised[call.given["session_id"]].append(call)
        if call.is_ok and _limits(call.got) != _limits(call.given):
            yield f"{call.given} was answered as {call.got}"
    for row in facts.rows("budgets"):
        calls = [call for call in raised[row["session_id"]] if call.outcome is not Outcome.REFUSED]
        may_be = {_limits(call.given) for call in calls}
        if not any(call.is_ok for call in calls):
            request_id = requests[row["session_id"]]
            # A spawn that failed and may be repeated has given its request_id back.
            may_be |= {*spawns.values()} if request_id is None else {spawns.get(request_id, ())}
        if _limits(row) not in may_be:
            yield f"the budget of {row['session_id']} is {_limits(row)}, and was set to {sorted(may_be)}"


def _limits(row: Row) -> Limits:
    return tuple(row[name] for name in _RAISED)


def _is_reached(budget: Row) -> bool:
    return any(budget[limit] and budget[used] >= budget[limit] for limit, used in _LIMITS.items())
