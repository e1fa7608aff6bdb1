"""Bugs that make a call without its approval, twice, or otherwise than it was approved (I11)."""

from tests.chaos.seeded_bugs.bug import Change, SeededBug

_SESSION = "services/session/spawnmesh_session"
_RUNNER = "services/runner/spawnmesh_runner"
_DECISIONS = "tests/contract/session/approvals/test_approvals.py"
_RACES = "tests/contract/session/approvals/test_approval_races.py"
_CALLS = "tests/contract/runner/waiting_runs/test_approvals.py"

APPROVAL_BUGS = (
    SeededBug(
        "a runner does not learn that the one before it began the approved call",
        (
            Change(
                f"{_SESSION}/operations/approval_requests.py",
                "return approval, approval.begin_epoch != calling.epoch\n",
                "return approval, False\n",
            ),
        ),
        (
            f"{_DECISIONS}::test_TakeDecision__an_approved_call_is_begun_once",
            f"{_RACES}::test_TakeDecision__of_all_runners_that_ever_held_the_run_one_makes_the_call",
        ),
    ),
    SeededBug(
        "a runner makes an approved call again that another one had begun",
        (
            Change(
                f"{_RUNNER}/loop/tool_calls.py",
                "if taken.was_begun and call.call.name != SESSIONS_SPAWN.name:",
                "if taken.was_begun and not assignment.may_repeat(call.call.name):",
            ),
        ),
        (f"{_CALLS}::test_TakeDecision__a_call_that_a_runner_before_may_have_made_is_not_made_again",),
    ),
    SeededBug(
        "the call is made with the arguments of the model",
        (
            Change(
                f"{_RUNNER}/loop/approvals.py",
                "approval.edited_arguments_json or approval.tool_call.arguments_json",
                "approval.tool_call.arguments_json",
            ),
        ),
        (f"{_CALLS}::test_RequestApproval__edited_arguments_are_what_is_made",),
    ),
    SeededBug(
        "a later decision replaces an earlier one",
        (
            Change(
                f"{_SESSION}/domain/approvals.py",
                "    if approval.state is ApprovalState.PENDING:\n        return True\n",
                "    if approval.decide_time is None or approval.decided_by:\n        return True\n",
            ),
            Change(
                f"{_SESSION}/operations/approval_decisions.py",
                "            queued = await queue_again(connection, tenant_id, run, f",
                "            queued = run\n"
                "            if approval.decide_time is None:\n"
                "                queued = await queue_again(connection, tenant_id, run, f",
            ),
            Change(
                f"{_SESSION}/store/approvals.sql",
                " and state = 'PENDING'\nreturning *",
                "\nreturning *",
            ),
        ),
        (f"{_DECISIONS}::test_DecideApproval__decides_once_and_a_repeat_is_the_same",),
    ),
    SeededBug(
        "a call that a person denied is made",
        (
            Change(
                f"{_RUNNER}/loop/approvals.py",
                "if approval.state == approval_pb2.APPROVAL_STATE_APPROVED:",
                "if approval.state != approval_pb2.APPROVAL_STATE_ANSWERED:",
            ),
        ),
        (f"{_CALLS}::test_TakeDecision__a_call_that_was_not_approved_is_not_made",),
    ),
)
