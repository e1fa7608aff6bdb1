"""Select the newest groups that fit a budget of tokens and one message of the transport."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from spawnmesh_transcript.domain.turns import Group, Turn

MAX_CONTEXT_BYTES = 10 * 1024 * 1024
"""Bytes of a context's bodies, of the 16 MiB that a message has by default.

The rest is for a summary, for the other fields of the response, and for the system prompt and the
tools' schemas, which go to the router with it.
"""

ENTRY_BYTES = 256
"""Bytes of an entry's ids, hashes and writer, beside its body."""

MISSING_RESULT_BYTES = 1024
"""Upper bound for an entry in place of a missing result: its call id and tool name may have 256
bytes each.
"""


MIN_SHARE_TOKENS = 256
"""The least tokens of a result that is cut: enough for the note about the cut."""


@dataclass(frozen=True, slots=True)
class Share:
    """The tokens and bytes that a result may take which is cut to fit."""

    token_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Selection:
    """The groups to read, oldest first. `is_full` is set if something older did not fit.

    `cut` has a share for each result, by seq, that is read only in part.
    """

    groups: tuple[Group, ...]
    is_full: bool
    cut: Mapping[int, Share] = field(default_factory=dict)


def group_token_count(group: Group, *, missing_result_token_count: int) -> int:
    """Return the tokens of all that is read with the group."""
    return sum(
        member.token_count if isinstance(member, Turn) else missing_result_token_count
        for member in group.members
    )


def batches(
    turns: Sequence[Turn], *, max_count: int, max_bytes: int = MAX_CONTEXT_BYTES
) -> Iterator[Sequence[Turn]]:
    """Split the turns, in order, into batches within both limits, each with at least one turn."""
    begin = size_bytes = 0
    for end, turn in enumerate(turns):
        if begin < end and (end - begin == max_count or size_bytes + turn.size_bytes > max_bytes):
            yield turns[begin:end]
            begin, size_bytes = end, 0
        size_bytes += turn.size_bytes
    if begin < len(turns):
        yield turns[begin:]


def group_size_bytes(group: Group) -> int:
    """Return the bytes of the group in a response, or a few more."""
    return sum(
        ENTRY_BYTES + member.size_bytes if isinstance(member, Turn) else MISSING_RESULT_BYTES
        for member in group.members
    )


def select(
    groups: Sequence[Group],
    *,
    token_budget: int,
    always: Turn | None,
    missing_result_token_count: int,
    max_bytes: int = MAX_CONTEXT_BYTES,
    cut_newest_results: bool = False,
) -> Selection:
    """Return the newest groups that fit, without a gap: the first one that does not fit ends the
    selection.

    `always` is included even if it alone exceeds the budget, and counts before the others; it may
    be older than all the groups. If the group that ends the selection is the newest one with
    results, `cut_newest_results` includes it: its results share what is left.
    """
    remaining = token_budget - (always.token_count if always else 0)
    remaining_bytes = max_bytes - (ENTRY_BYTES + always.size_bytes if always else 0)
    chosen: list[Group] = []
    cut: Mapping[int, Share] = {}
    is_full = False
    has_always = always is None
    for group in reversed(groups):
        if always and group.head.seq == always.seq:
            chosen.append(group)
            has_always = True
            continue
        cost = group_token_count(group, missing_result_token_count=missing_result_token_count)
        size = group_size_bytes(group)
        if is_full or cost > remaining or size > remaining_bytes:
            if cut_newest_results and not is_full and group is _newest_with_results(groups):
                cut = _shares_of_results(group, remaining - cost, remaining_bytes - size)
                chosen.append(group)
            is_full = True
            if has_always:
                break
            continue
        remaining -= cost
        remaining_bytes -= size
        chosen.append(group)
    if not has_always and always:
        chosen.append(Group(always))
    return Selection(tuple(reversed(chosen)), is_full, cut)


def _newest_with_results(groups: Sequence[Group]) -> Group | None:
    return next((group for group in reversed(groups) if group.has_results), None)


def _shares_of_results(group: Group, spare_tokens: int, spare_bytes: int) -> dict[int, Share]:
    """Return the shares of the results that are cut, so that the group fits if that is possible.

    `spare_tokens` and `spare_bytes` are what is left beside the complete group, negative for what
    it has too much.
    """
    results = [result for result in group.results if isinstance(result, Turn)]
    tokens = [result.token_count for result in results]
    sizes = [result.size_bytes for result in results]
    token_share = max(fair_share(tokens, sum(tokens) + spare_tokens), MIN_SHARE_TOKENS)
    byte_share = max(fair_share(sizes, sum(sizes) + spare_bytes), 0)
    return {
        result.seq: Share(token_share, byte_share)
        for result in results
        if result.token_count > token_share or result.size_bytes > byte_share
    }


def fair_share(wanted: Sequence[int], total: int) -> int:
    """Return the largest limit for each, so that all together take at most the total.

    Those that want less than the limit leave the rest to the others. A total of 0 or less leaves
    nothing to any.
    """
    rest = total
    for index, size in enumerate(sorted(wanted)):
        share = rest // (len(wanted) - index)
        if size > share:
            return max(share, 0)
        rest -= size
    return max(wanted, default=0)
