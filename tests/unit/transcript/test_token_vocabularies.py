"""The vocabulary of each model family, and estimates for other models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_transcript.domain.selection import group_token_count, select
from spawnmesh_transcript.domain.token_vocabularies import (
    CountBasis,
    Measure,
    Vocabulary,
    count_basis,
    measure_of,
)
from spawnmesh_transcript.domain.turns import Group, MissingResult, Role, Turn, measured, turns_of

O200K, CL100K = Vocabulary.O200K, Vocabulary.CL100K

VOCABULARIES = st.sampled_from(Vocabulary)
MEASURES = st.builds(Measure, VOCABULARIES, st.sampled_from([100, 130, 150, 200]))
NAMES = {
    O200K: [
        "gpt-4o",
        "gpt-4o-mini",
        "chatgpt-4o-latest",
        "gpt-4.1-nano",
        "gpt-5",
        "gpt-5.1",
        "gpt-5-codex",
        "o1",
        "o3-mini",
        "o4-mini",
        "gpt-oss-120b",
    ],
    CL100K: ["gpt-4", "gpt-4-turbo", "gpt-4-32k", "gpt-3.5-turbo", "gpt-35-turbo"],
}
ESTIMATED = [
    "claude-sonnet-4",
    "gemini-2.5-pro",
    "llama3.1",
    "mistral-large",
    "qwen3-coder",
    "deepseek-chat",
    "o1000",
    "gpt-50",
    "gpt-40",
    "mine",
    "",
]


@pytest.mark.parametrize(
    ("vocabulary", "name"), [(vocabulary, name) for vocabulary, names in NAMES.items() for name in names]
)
def test_models_of_a_known_vocabulary_are_counted_by_it(vocabulary: Vocabulary, name: str) -> None:
    assert measure_of(name) == Measure(vocabulary)


@pytest.mark.parametrize("name", ESTIMATED)
def test_all_others_are_estimated_with_a_margin(name: str) -> None:
    measure = measure_of(name)
    assert measure.vocabulary is O200K
    assert 130 <= measure.percent <= 150


@pytest.mark.parametrize(
    ("model", "percent"),
    [
        ("claude-opus-4-6", 150),
        ("claude-haiku-4-5-20251001", 150),
        ("claude-opus-4-20250514", 150),
        ("claude-3-7-sonnet-20250219", 150),
        ("claude-opus-4-7", 200),
        ("anthropic/claude-opus-4.8", 200),
        ("us.anthropic.claude-sonnet-5-20260601-v1:0", 200),
        ("claude-5-opus", 200),
    ],
)
def test_newer_claude_models_take_more_tokens(model: str, percent: int) -> None:
    assert measure_of(model) == Measure(O200K, percent)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", "claude"),
        ("bedrock/anthropic.claude-3-5-haiku-20241022-v1:0", "claude"),
        ("arn:aws:bedrock:eu-west-1:1:inference-profile/eu.anthropic.claude-opus-4-v1:0", "claude"),
        ("meta.llama3-70b-instruct-v1:0", "llama"),
        ("openai.gpt-oss-120b-1:0", "gpt-oss"),
        ("openrouter/meta-llama/Llama-3.3-70B-Instruct", "llama"),
        ("ft:gpt-4o-mini-2024-07-18:acme::1", "gpt-4o"),
        ("models/gemini-1.5-flash", "gemini"),
        ("vertex/claude-3-7-sonnet@20250219", "claude"),
    ],
)
def test_names_in_the_spelling_of_cloud_providers(model: str, name: str) -> None:
    assert measure_of(model) == measure_of(name)


@given(
    st.sampled_from([name for names in NAMES.values() for name in names] + ESTIMATED[:6]),
    st.sampled_from(["", "openai/", "azure/openai/", "x/"]),
    st.sampled_from(["", "-2024-08-06", "-0613", "-latest"]),
    st.booleans(),
)
def test_provider_date_and_case_do_not_matter(name: str, provider: str, date: str, upper: bool) -> None:
    model = f"{provider}{name}{date}"
    assert measure_of(model.upper() if upper else f" {model} ") == measure_of(name)


@given(st.text(max_size=40))
def test_every_name_has_a_vocabulary_or_an_estimate(name: str) -> None:
    assert measure_of(name).percent >= 100


@given(MEASURES, VOCABULARIES, st.lists(st.integers(0, 10**6), max_size=20))
def test_rounding_never_lowers_a_count(measure: Measure, counted_by: Vocabulary, counts: list[int]) -> None:
    scaled = [measure.of(count, counted_by) for count in counts]
    assert all(more >= count for more, count in zip(scaled, counts, strict=True))
    assert sum(scaled) >= measure.of(sum(counts), counted_by)
    assert (scaled == counts) or not measure.takes(counted_by)
    assert [measure.of(count, counted_by) for count in sorted(counts)] == sorted(scaled)


@given(
    MEASURES,
    st.lists(st.tuples(st.integers(0, 5_000), VOCABULARIES, st.booleans()), min_size=1, max_size=30),
    st.integers(0, 60_000),
    st.booleans(),
)
def test_the_reported_counts_keep_the_budget(
    measure: Measure, counts: list[tuple[int, Vocabulary, bool]], budget: int, has_always: bool
) -> None:
    groups = [
        Group(
            measured(Turn(seq, Role.ASSISTANT, count, counted_by=counted_by), measure),
            (MissingResult("c"),) if misses else (),
        )
        for seq, (count, counted_by, misses) in enumerate(counts, start=1)
    ]
    always = groups[0].head if has_always and not groups[0].results else None
    missing = measure.of(30, measure.vocabulary)
    selection = select(groups, token_budget=budget, always=always, missing_result_token_count=missing)
    told = sum(group_token_count(group, missing_result_token_count=missing) for group in selection.groups)
    assert told <= budget or [group.head for group in selection.groups] == [always]
    assert {turn.counted_by for turn in turns_of(selection.groups)} <= {
        counted_by for _, counted_by, _ in counts
    }


def test_reported_counts() -> None:
    exact, similar = Measure(CL100K), Measure(O200K, 150)
    assert count_basis(exact, {CL100K}) == count_basis(exact, ()) == CountBasis(False, CL100K)
    assert count_basis(exact, {O200K}) == CountBasis(True, O200K)
    assert count_basis(exact, {O200K, CL100K}) == CountBasis(True, CL100K)
    assert count_basis(similar, {O200K}) == count_basis(similar, ()) == CountBasis(True, O200K)
    assert count_basis(similar, {CL100K}) == CountBasis(True, CL100K)
