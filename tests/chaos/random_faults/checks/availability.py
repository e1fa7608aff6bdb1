"""Nothing that was accepted fails for the sake of the infrastructure."""

from tests.chaos.random_faults.facts import Facts

_OUTCOME_UNKNOWN = b"OUTCOME_UNKNOWN"
_MOST_UNCERTAIN_SHARE = 0.02
_MOST_UNCERTAIN = 2
"""Of the runs, at most this share or number may give up for a call of unknown outcome."""


def check_runs(facts: Facts) -> list[str]:
    """Report each run that did not succeed although no caller killed it or an ancestor, or
    interrupted it.

    An agent whose runner was lost in the middle of a call may learn that the outcome is unknown,
    and give up (ADR 19): a few of the runs, and only those that were claimed again. Any other
    outage is hidden from agents.
    """
    interrupted = {call.given["session_id"] for call in facts.of("interrupt")}
    killed = {call.given["session_id"] for call in facts.of("kill")}
    families = {
        row["session_id"]: {row["session_id"], *row["ancestor_ids"]} for row in facts.rows("sessions")
    }
    uncertain = uncertain_sessions(facts)
    found, excused_count = [], 0
    for run in facts.rows("runs"):
        family = families.get(run["session_id"], set())
        if (
            run["state"] in ("FAILED", "TIMED_OUT")
            or (run["state"] == "KILLED" and not family & killed)
            or (run["state"] == "INTERRUPTED" and run["session_id"] not in interrupted)
        ):
            found.append(
                f"{run['run_id']} of {run['session_id']} is {run['state']}: {run['error_reason']}: "
                f"{run['error_message'][:200]} (attempts {run['attempt_count']}, delays {run['delay_count']})"
            )
        elif "I cannot go on" in run["result_text"]:
            was_claimed_again = run["attempt_count"] + run["delay_count"] > 1
            if run["session_id"] in uncertain and was_claimed_again:
                excused_count += 1
            else:
                found.append(f"{run['run_id']} of {run['session_id']} answered: {run['result_text'][:200]}")
    if excused_count > max(_MOST_UNCERTAIN, _MOST_UNCERTAIN_SHARE * len(facts.rows("runs"))):
        found.append(f"{excused_count} runs gave up for a call of unknown outcome")
    return found


def uncertain_sessions(facts: Facts) -> set[str]:
    """Return the sessions in which an agent learned that the outcome of a call is unknown."""
    return {row["session_id"] for row in facts.rows("entries") if _OUTCOME_UNKNOWN in bytes(row["body"])}


def check_processes(facts: Facts) -> list[str]:
    """Report processes that ended by themselves."""
    return [f"{process} ended by itself" for process in facts.ended]
