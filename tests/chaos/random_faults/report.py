"""Print what was checked."""

from collections import Counter
from collections.abc import Callable

from tests.chaos.random_faults.checks import CHECKS
from tests.chaos.random_faults.checks.availability import uncertain_sessions
from tests.chaos.random_faults.facts import Facts
from tests.chaos.random_faults.trial import Verdict

_MOST_LINES = 10


def print_verdict(verdict: Verdict, report: Callable[[str], None]) -> None:
    """Print what happened, a line for each check with how much it checked, and what it found."""
    report(summary_of(verdict.facts))
    counts = {check.name: f" ({check.count_inputs(verdict.facts)})" for check in CHECKS}
    for name, lines in verdict.found.items():
        report(f"{'FAILED' if lines else 'ok    '}  {name}{counts.get(name, '')}")
        for line in lines[:_MOST_LINES]:
            report(f"          {line}")
        if len(lines) > _MOST_LINES:
            report(f"          … and {len(lines) - _MOST_LINES} more")


def summary_of(facts: Facts) -> str:
    """Return one line of counts."""
    calls = Counter(call.operation for call in facts.calls)
    states = Counter(row["state"] for row in facts.rows("runs"))
    unknown = sum(call.outcome == "unknown" for call in facts.calls)
    delayed = sum(row["delay_count"] > 0 for row in facts.rows("runs"))
    retried = sum(row["attempt_count"] > 1 for row in facts.rows("runs"))
    counted = ", ".join(f"{count} {name}" for name, count in sorted(calls.items()))
    runs = ", ".join(f"{count} {name}" for name, count in sorted(states.items()))
    return (
        f"calls: {counted} ({unknown} without an answer); runs: {runs} ({delayed} delayed, {retried} with "
        f"several attempts, "
        f"{len(uncertain_sessions(facts))} with a call of unknown outcome); {len(facts.rows('entries'))} entries, {len(facts.rows('blobs'))} blobs"
    )
