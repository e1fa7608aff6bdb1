"""Merge answers to a draft."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_hook.domain.decisions import (
    REASON_MAX_BYTES,
    CappedRevision,
    FinalizeAnswer,
    PluginDecision,
    RevisionCap,
    decide_draft,
    merge_decisions,
)

CONTINUE, REVISE, FINALIZE = FinalizeAnswer.CONTINUE, FinalizeAnswer.REVISE, FinalizeAnswer.FINALIZE


def decisions_of(answers: str) -> list[PluginDecision]:
    kinds = {"c": CONTINUE, "r": REVISE, "f": FINALIZE}
    return [PluginDecision(f"p{at}", kinds[letter], f"reason {at}") for at, letter in enumerate(answers)]


@pytest.mark.parametrize(
    ("answers", "answer", "reason", "decided_by"),
    [
        ("", CONTINUE, "", ()),
        ("c", CONTINUE, "", ()),
        ("ccc", CONTINUE, "", ()),
        ("r", REVISE, "reason 0", ("p0",)),
        ("crc", REVISE, "reason 1", ("p1",)),
        ("rr", REVISE, "reason 0\n\nreason 1", ("p0", "p1")),
        ("rcr", REVISE, "reason 0\n\nreason 2", ("p0", "p2")),
        ("rf", REVISE, "reason 0", ("p0",)),
        ("rcf", REVISE, "reason 0", ("p0",)),
        ("rfr", REVISE, "reason 0", ("p0",)),
        ("f", FINALIZE, "reason 0", ("p0",)),
        ("fr", FINALIZE, "reason 0", ("p0",)),
        ("cfr", FINALIZE, "reason 1", ("p1",)),
        ("ff", FINALIZE, "reason 0", ("p0",)),
        ("fc", FINALIZE, "reason 0", ("p0",)),
    ],
)
def test_merge(answers: str, answer: FinalizeAnswer, reason: str, decided_by: tuple[str, ...]) -> None:
    merged = merge_decisions(decisions_of(answers))
    assert (merged.answer, merged.reason, merged.decided_by) == (answer, reason, decided_by)


@pytest.mark.parametrize("length", range(6))
def test_the_first_that_does_not_continue_decides(length: int) -> None:
    for answers in map("".join, product("crf", repeat=length)):
        first = next((letter for letter in answers if letter != "c"), "c")
        assert (
            merge_decisions(decisions_of(answers)).answer
            is {"c": CONTINUE, "r": REVISE, "f": FINALIZE}[first]
        )


@given(st.lists(st.text(min_size=1, max_size=3000), min_size=1, max_size=4))
def test_joined_reasons_are_cut_at_the_bound(reasons: list[str]) -> None:
    merged = merge_decisions([PluginDecision(str(at), REVISE, reason) for at, reason in enumerate(reasons)])
    whole = "\n\n".join(reasons)
    assert whole.startswith(merged.reason)
    assert len(merged.reason.encode()) <= REASON_MAX_BYTES
    if len(whole.encode()) <= REASON_MAX_BYTES:
        assert merged.reason == whole


def test_a_granted_revise_has_a_number() -> None:
    decision = decide_draft(merge_decisions(decisions_of("r")), 2)
    assert (decision.answer, decision.reason, decision.revision_number) == (REVISE, "reason 0", 2)
    assert decision.capped_revisions == ()


@pytest.mark.parametrize("cap", RevisionCap)
def test_a_revise_past_a_cap_is_a_capped_continue(cap: RevisionCap) -> None:
    decision = decide_draft(merge_decisions(decisions_of("rcr")), cap)
    assert (decision.answer, decision.reason, decision.decided_by) == (CONTINUE, "", ())
    assert decision.capped_revisions == (CappedRevision("p0", cap), CappedRevision("p2", cap))
    assert decision.revision_number == 0


@pytest.mark.parametrize("answers", ["c", "f", "fr"])
def test_only_a_revise_is_capped(answers: str) -> None:
    decision = decide_draft(merge_decisions(decisions_of(answers)), RevisionCap.RUN)
    assert decision.capped_revisions == ()
    assert decision.answer is merge_decisions(decisions_of(answers)).answer


@given(
    st.lists(st.sampled_from([CONTINUE, REVISE, FINALIZE]), max_size=6), st.integers(min_value=0, max_value=5)
)
def test_nothing_below_undoes_a_revise_or_a_finalize(answers: list[FinalizeAnswer], cut: int) -> None:
    given_answers = [PluginDecision(f"p{at}", answer, f"reason {at}") for at, answer in enumerate(answers)]
    above = merge_decisions(given_answers[:cut])
    if above.answer is not CONTINUE:
        assert merge_decisions(given_answers).answer is above.answer


def test_a_revise_with_an_exhausted_key_counts_as_a_continue() -> None:
    exhausted = PluginDecision("a", REVISE, "again", "key")
    assert merge_decisions([exhausted], {("a", "key")}).answer is CONTINUE
    assert merge_decisions([exhausted], {("b", "key"), ("a", "other")}).answer is REVISE
    assert merge_decisions([exhausted, PluginDecision("b", FINALIZE)], {("a", "key")}).answer is FINALIZE


BY_KEY = CappedRevision("a", RevisionCap.OBJECTION_KEY)


@pytest.mark.parametrize(
    ("below", "granted", "answer", "capped"),
    [
        ([], 0, CONTINUE, (BY_KEY,)),
        ([PluginDecision("b", FINALIZE)], 0, FINALIZE, (BY_KEY,)),
        (
            [PluginDecision("b", REVISE, "again")],
            RevisionCap.LAST_TURN,
            CONTINUE,
            (BY_KEY, CappedRevision("b", RevisionCap.LAST_TURN)),
        ),
        ([PluginDecision("b", REVISE, "again")], 1, REVISE, ()),
    ],
)
def test_an_exhausted_key_is_a_cap_unless_the_draft_is_sent_back(
    below: list[PluginDecision],
    granted: int | RevisionCap,
    answer: FinalizeAnswer,
    capped: tuple[CappedRevision, ...],
) -> None:
    above = PluginDecision("a", REVISE, "again", "key")
    decision = decide_draft(merge_decisions([above, *below], {("a", "key")}), granted)
    assert (decision.answer, decision.capped_revisions) == (answer, capped)
