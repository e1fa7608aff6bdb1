"""I9: the deadline of an active cooldown only moves later."""

from tests.chaos.random_faults.facts import Facts, Row


def check(facts: Facts) -> list[str]:
    """Compare each sample with the one before of the same cooldown."""
    found = []
    before: dict[tuple[str, str, str], Row] = {}
    for sample in facts.cooldowns:
        key = (sample["tenant_id"], sample["scope"], sample["target"])
        last = before.get(key)
        was_active = last is not None and last["until_time"] > sample["sample_time"]
        if was_active and sample["until_time"] < last["until_time"]:
            found.append(f"{key[1]} {key[2]} went from {last['until_time']} to {sample['until_time']}")
        before[key] = sample
    return found
