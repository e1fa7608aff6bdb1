"""The chain: which models are called, in which order, and the verdicts of the others."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_model_router.domain.candidates import (
    Candidate,
    Capability,
    Cooling,
    Incapable,
    ModelRef,
    Origin,
    Ready,
    Skipped,
    SkipReason,
    Tried,
    UnknownModel,
    Verdict,
    assess,
    build_chain,
    close_chain,
    parse_ref,
    skip_after,
)
from spawnmesh_model_router.domain.cooldown import Cooldown, Scope
from spawnmesh_model_router.domain.reasons import FailoverReason

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ALIASES = {"Fast": "openai/gpt-mini", "quick": "fast", "loop": "pool", "pool": "loop"}
SIGHT = frozenset({Capability.IMAGES})


def spelled(chain: tuple[Candidate, ...]) -> list[str]:
    return [str(candidate.ref) for candidate in chain]


def blocking_cooldown(until: datetime, failed_at: datetime = NOW - timedelta(minutes=10)) -> Cooldown:
    return Cooldown(Scope.MODEL, until, 1, FailoverReason.TIMEOUT, failed_at)


def judge(
    candidate: Candidate,
    cooldown: Cooldown | None = None,
    offers: frozenset[Capability] | None = SIGHT,
    needs: frozenset[Capability] = frozenset(),
) -> Ready | Verdict:
    return assess(candidate, offers=offers, needs=needs, cooldown=cooldown, now=NOW)


def test_model_name_keeps_its_slashes_and_provider_is_lowered() -> None:
    assert parse_ref(" OpenRouter/meta/Llama-4 ", {}) == ModelRef("openrouter", "meta/Llama-4")


def test_name_without_a_model_resolves_to_nothing() -> None:
    assert [parse_ref(name, {}) for name in ("gpt", "openai/", "/gpt", "")] == [None] * 4


def test_circle_of_aliases_resolves_to_nothing() -> None:
    assert parse_ref("loop", {"loop": "pool", "pool": "loop"}) is None


def test_chain_is_requested_then_fallbacks_then_primary() -> None:
    chain = build_chain("a/1", ["b/2", "c/3"], "d/4", {}, strict=False)
    assert spelled(chain) == ["a/1", "b/2", "c/3", "d/4"]
    assert [candidate.origin for candidate in chain] == [
        Origin.REQUESTED,
        Origin.FALLBACK,
        Origin.FALLBACK,
        Origin.PRIMARY,
    ]
    assert [candidate.is_primary for candidate in chain] == [False, False, False, True]


def test_alias_and_its_model_are_one_candidate() -> None:
    assert spelled(build_chain("QUICK", ["openai/gpt-mini", "fast"], "a/1", ALIASES, strict=False)) == [
        "openai/gpt-mini",
        "a/1",
    ]


def test_primary_goes_first_when_nothing_is_requested() -> None:
    chain = build_chain(None, ["b/2"], "a/1", {}, strict=True)
    assert spelled(chain) == ["a/1", "b/2"]
    assert not any(candidate.excluded_by_strict for candidate in chain)


def test_requested_primary_is_known_as_the_primary() -> None:
    (only,) = build_chain("a/1", [], "a/1", {}, strict=False)
    assert only.is_primary


def test_strict_model_never_falls_back() -> None:
    first, *others = build_chain("a/1", ["b/2"], "c/3", {}, strict=True)
    assert judge(first) == Ready(probe=False)
    assert [judge(other) for other in others] == [Skipped(SkipReason.STRICT)] * 2


def test_strict_alias_that_resolves_to_nothing_does_not_fall_back_either() -> None:
    first, second = build_chain("nonsense", ["b/2"], None, {}, strict=True)
    assert judge(first) == UnknownModel("nonsense")
    assert judge(second) == Skipped(SkipReason.STRICT)


def test_model_that_is_not_configured_is_unknown() -> None:
    (only,) = build_chain("a/1", [], None, {}, strict=False)
    assert judge(only, offers=None) == UnknownModel("a/1")


def test_candidate_without_sight_is_incapable_of_images() -> None:
    (only,) = build_chain("a/1", [], None, {}, strict=False)
    assert judge(only, offers=frozenset(), needs=SIGHT) == Incapable((Capability.IMAGES,))


def test_cooling_candidate_is_not_asked_until_its_time() -> None:
    (only,) = build_chain("a/1", [], None, {}, strict=False)
    until = NOW + timedelta(seconds=40)
    assert judge(only, blocking_cooldown(until)) == Cooling(until, FailoverReason.TIMEOUT)
    assert judge(only, blocking_cooldown(NOW)) == Ready(probe=False)


def test_cooling_primary_near_its_end_is_probed() -> None:
    (only,) = build_chain("a/1", [], "a/1", {}, strict=False)
    assert judge(only, blocking_cooldown(NOW + timedelta(seconds=40))) == Ready(probe=True)


def test_certificate_failure_removes_the_other_models_of_its_provider() -> None:
    failed = ModelRef("a", "1")
    assert skip_after(failed, FailoverReason.TLS_CERTIFICATE, ModelRef("a", "2")) == Skipped(
        SkipReason.PROVIDER_CERTIFICATE
    )
    assert skip_after(failed, FailoverReason.TLS_CERTIFICATE, ModelRef("b", "2")) is None
    assert skip_after(failed, FailoverReason.TIMEOUT, ModelRef("a", "2")) is None


def test_failure_of_the_caller_stops_the_chain() -> None:
    reason = FailoverReason.NO_FAILOVER
    assert skip_after(ModelRef("a", "1"), reason, ModelRef("b", "2")) == Skipped(SkipReason.CHAIN_STOPPED)


def test_every_candidate_ends_with_a_verdict() -> None:
    chain = build_chain("a/1", ["nonsense", "b/2"], None, {}, strict=False)
    closed = close_chain(chain, {ModelRef("a", "1"): Tried(None)}, SkipReason.NOT_NEEDED)
    assert [verdict for _, verdict in closed] == [
        Tried(None),
        UnknownModel("nonsense"),
        Skipped(SkipReason.NOT_NEEDED),
    ]


NAMES = st.sampled_from(
    ["a/1", "A/1", " a/1 ", "b/2", "b/2/x", "fast", "quick", "openai/gpt-mini", "junk", "loop"]
)


@given(st.none() | NAMES, st.lists(NAMES, max_size=8), st.none() | NAMES, st.booleans())
def test_no_model_is_in_the_chain_twice_and_none_is_lost(
    requested: str | None, fallbacks: list[str], primary: str | None, strict: bool
) -> None:
    aliases = {"fast": "openai/gpt-mini", "quick": "fast", "loop": "loop"}
    chain = build_chain(requested, fallbacks, primary, aliases, strict=strict)
    refs = [candidate.ref for candidate in chain if candidate.ref is not None]
    asked = [name for name in [requested, *fallbacks, primary] if name]
    assert len(refs) == len(set(refs))
    assert set(refs) == {ref for name in asked if (ref := parse_ref(name, aliases)) is not None}
    if requested:
        assert chain[0].name == requested
