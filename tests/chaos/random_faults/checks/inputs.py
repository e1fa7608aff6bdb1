"""The amount of input of each check. Without any input, a check cannot find anything."""

from tests.chaos.random_faults.checks.terminal_states import TERMINAL
from tests.chaos.random_faults.facts import Facts


def calls(facts: Facts) -> int:
    """Count the calls."""
    return len(facts.calls)


def spawns(facts: Facts) -> int:
    """Count the accepted spawns."""
    return _accepted(facts, "spawn")


def sends(facts: Facts) -> int:
    """Count the accepted messages."""
    return _accepted(facts, "send")


def appends(facts: Facts) -> int:
    """Count the accepted appends."""
    return _accepted(facts, "append")


def acquired_transcripts(facts: Facts) -> int:
    """Count the accepted claims of transcripts by the load's writers."""
    return _accepted(facts, "acquire")


def output_sets(facts: Facts) -> int:
    """Count the sets that runs have published."""
    return sum(row["position"] is not None for row in facts.rows("output_sets"))


def pries(facts: Facts) -> int:
    """Count the answers to clients that asked for sessions of another tenant."""
    return sum(call.outcome != "unknown" for call in facts.of("pry"))


def watched_events(facts: Facts) -> int:
    """Count the events that watchers got."""
    streams = [one for call in facts.of("watch") for one in call.got.get("streams", {}).values()]
    return sum(len(one["numbers"]) for one in streams)


def watches_again(facts: Facts) -> int:
    """Count the watches from the beginning, at rest."""
    return len(facts.of("watch again"))


def received(facts: Facts) -> int:
    """Count the messages that webhooks received."""
    return len(facts.received)


def runs(facts: Facts) -> int:
    """Count the runs that ended."""
    return sum(row["state"] in TERMINAL for row in facts.rows("runs"))


def announcements(facts: Facts) -> int:
    """Count the runs of children."""
    children = {row["session_id"] for row in facts.rows("sessions") if row["parent_session_id"]}
    return sum(row["session_id"] in children for row in facts.rows("runs"))


def allowed_spawns(facts: Facts) -> int:
    """Count the spawns that plugins allowed."""
    return len(facts.rows("allowed_spawns"))


def claims(facts: Facts) -> int:
    """Count the claims of runs."""
    return sum(row["kind"] == "RUN" and row["run_state"] == "RUNNING" for row in facts.rows("events"))


def sessions(facts: Facts) -> int:
    """Count the sessions."""
    return len(facts.rows("sessions"))


def transcripts(facts: Facts) -> int:
    """Count the transcripts."""
    return len(facts.rows("transcripts"))


def tool_results(facts: Facts) -> int:
    """Count the results of tool calls."""
    return sum(bool(row["answers"]) for row in facts.rows("entries"))


def attachment_sets(facts: Facts) -> int:
    """Count the sets of attachments of sessions."""
    return sum(bool(row["session_id"]) for row in facts.rows("sets"))


def approvals(facts: Facts) -> int:
    """Count the approvals of calls on which a person decided."""
    return sum(bool(row["decided_by"]) for row in facts.rows("approvals"))


def budgets(facts: Facts) -> int:
    """Count the budgets whose limits were raised."""
    return sum(row["version"] > 1 for row in facts.rows("budgets"))


def cooldowns(facts: Facts) -> int:
    """Count the samples of cooldowns."""
    return len(facts.cooldowns)


def scanned_files(facts: Facts) -> int:
    """Count the files that were searched for content; none, if no content was handed over."""
    return facts.scanned_count if attachment_sets(facts) else 0


def spans(facts: Facts) -> int:
    """Count the spans."""
    return facts.span_count


def watched_processes(facts: Facts) -> int:
    """Count the processes that were watched."""
    return facts.watched_count


def _accepted(facts: Facts, operation: str) -> int:
    return sum(call.is_ok for call in facts.of(operation))
