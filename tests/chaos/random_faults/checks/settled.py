"""After the faults, everything that was begun is brought to its end."""

from tests.chaos.random_faults.facts import Facts


def check(facts: Facts) -> list[str]:
    """Report what had not come to rest in time, and what was given up."""
    dead = [
        f"delivery {row['key']} is dead: {row['last_error']}"
        for row in facts.rows("outbox")
        if row["dead_time"] is not None
    ]
    failed = [
        f"job {row['kind']} {row['key']} is dead: {row['last_error']}"
        for row in facts.rows("jobs")
        if row["dead_time"] is not None
    ]
    return [*facts.unsettled, *dead, *failed]
