"""Traces survive crashes: no span lacks its parent."""

from tests.chaos.random_faults.facts import Facts


def check(facts: Facts) -> list[str]:
    """Report the spans without their parent."""
    return [f"the parent of {span} is missing" for span in facts.orphans]
