"""What fits a budget of tokens, newest first."""

from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh_transcript.domain.turns import Group, Turn


@dataclass(frozen=True, slots=True)
class Selection:
    """The groups to read, oldest first. `is_full` where something older did not fit."""

    groups: tuple[Group, ...]
    is_full: bool


def group_token_count(group: Group, *, missing_result_token_count: int) -> int:
    """Tokens of all that is read with the group."""
    return sum(
        member.token_count if isinstance(member, Turn) else missing_result_token_count for member in group.members
    )


def select(
    groups: Sequence[Group], *, token_budget: int, always: Turn | None, missing_result_token_count: int
) -> Selection:
    """The newest groups that fit, without a gap: the first that does not fit ends it.

    `always` is in whatever happens, also when it alone is over the budget, and its tokens are taken first; it may be older than all the groups.
    """
    remaining = token_budget - (always.token_count if always else 0)
    chosen: list[Group] = []
    is_full = False
    has_always = always is None
    for group in reversed(groups):
        if always and group.head.seq == always.seq:
            chosen.append(group)
            has_always = True
            continue
        cost = group_token_count(group, missing_result_token_count=missing_result_token_count)
        if is_full or cost > remaining:
            is_full = True
            if has_always:
                break
            continue
        remaining -= cost
        chosen.append(group)
    if not has_always and always:
        chosen.append(Group(always))
    return Selection(tuple(reversed(chosen)), is_full)
