"""A plugin that allowed a spawn hears how it ended: of each run, or that the spawn failed."""

from collections import defaultdict

from tests.chaos.random_faults.checks.terminal_states import TERMINAL
from tests.chaos.random_faults.facts import Facts


def check(facts: Facts) -> list[str]:
    """Look for the delivered end of each run of a session whose spawn a plugin allowed.

    A failed spawn has no run: its end names the session alone.
    """
    allowed, heard = set(), set()
    for row in facts.rows("deliveries"):
        if (row["hook"], row["decision"]) == ("BEFORE_SPAWN", "allow"):
            allowed.add((row["session_id"], row["plugin"]))
        elif (row["hook"], row["decision"]) == ("SUBAGENT_ENDED", "told"):
            heard.add((row["session_id"], row["plugin"], row["run_id"]))
    runs = defaultdict(list)
    for run in facts.rows("runs"):
        if run["state"] in TERMINAL:
            runs[run["session_id"]].append(run["run_id"])
    return [
        f"{plugin} allowed {session_id}, and did not hear of the end of {run_id or 'the spawn'}"
        for session_id, plugin in sorted(allowed)
        for run_id in runs.get(session_id, [""])
        if (session_id, plugin, run_id) not in heard
    ]
