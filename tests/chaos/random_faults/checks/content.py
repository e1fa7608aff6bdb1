"""I10: content that was handed over is at rest in the bucket only."""

from tests.chaos.random_faults.facts import Facts


def check(facts: Facts) -> list[str]:
    """Report the files that have it, and what runs left on the runners' disk."""
    leaks = [f"{file} has content of an attachment" for file in facts.leaks]
    return [*leaks, *(f"{name} is left in the workspaces" for name in facts.workspaces)]
