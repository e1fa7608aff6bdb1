"""Plugins that allowed a spawn hear how it ended: of each run, or that the spawn failed."""

from collections import defaultdict

from tests.chaos.random_faults.checks.terminal_states import TERMINAL
from tests.chaos.random_faults.facts import Facts


def check(facts: Facts) -> list[str]:
    """Look for the delivered end of each run of a session that a plugin allowed.

    A failed spawn has no run: its end names the session alone.
    """
    heard = {
        (row["session_id"], row["run_id"])
        for row in facts.rows("deliveries")
        if (row["hook"], row["decision"]) == ("SUBAGENT_ENDED", "told")
    }
    allowed = {row["session_id"] for row in facts.rows("allowed_spawns")} | {
        row["session_id"]
        for row in facts.rows("deliveries")
        if (row["hook"], row["decision"]) == ("BEFORE_SPAWN", "allow")
    }
    runs = defaultdict(list)
    for run in facts.rows("runs"):
        if run["state"] in TERMINAL:
            runs[run["session_id"]].append(run["run_id"])
    return [
        f"no plugin heard of the end of {run_id or 'the spawn'} of {session_id}, which was allowed"
        for session_id in sorted(allowed)
        for run_id in runs.get(session_id, [""])
        if (session_id, run_id) not in heard
    ]
