"""Explained routes and cooldowns in words."""

from datetime import UTC, datetime, timedelta

import pytest
from spawnmesh_console.domain.cooldowns import CooldownView, ProviderView, model_state, subject_of
from spawnmesh_console.domain.routes import RouteVerdict, names_in, shown_candidates

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)


def _verdict(model: str, verdict: str, **fields: object) -> RouteVerdict:
    values = {"reason": "", "until": None, "detail": "", "images": "", "is_of_tenant": False}
    return RouteVerdict(model, verdict, **{**values, **fields})  # type: ignore[arg-type]


def test_only_the_first_ready_candidate_would_be_called() -> None:
    shown = shown_candidates(
        [
            _verdict("a/1", "COOLING", reason="RATE_LIMIT", until=LATER, is_of_tenant=True),
            _verdict("a/2", "INCAPABLE", detail="cannot take images", images="ROUTED_AROUND"),
            _verdict("a/3", "READY", images="STRIPPED"),
            _verdict("a/4", "READY"),
            _verdict("a/5", "NOT_NEEDED", detail="the request asks for one model alone"),
        ]
    )
    assert [one.state.word for one in shown] == [
        "skipped",
        "skipped",
        "would be called",
        "would be next",
        "not called",
    ]
    assert shown[0].until == LATER
    assert shown[0].sentences == (
        "It is in cooldown after failed calls of this tenant: too many requests (RATE_LIMIT).",
    )
    assert shown[1].sentences[0] == "It cannot take images."
    assert shown[2].sentences == ("It is called first.", "It cannot see images: a note stands for the image.")
    assert shown[3].sentences == ("It is called if the ones before it fail.",)
    assert shown[4].sentences == ("The request asks for one model alone.",)


def test_a_probe_comes_before_the_next_candidate() -> None:
    shown = shown_candidates([_verdict("a/1", "PROBE"), _verdict("a/2", "READY")])
    assert [one.state.word for one in shown] == ["would be tried", "would be next"]


def test_a_verdict_of_a_newer_router_has_a_word() -> None:
    (shown,) = shown_candidates([_verdict("a/1", "")])
    assert (shown.state.word, shown.sentences) == ("unknown", ())


@pytest.mark.parametrize(
    ("scope", "target", "words"),
    [
        ("MODEL", "a/b/c", "model a/b/c"),
        ("PROVIDER", "a", "all models of a"),
        ("CREDENTIAL", "a/2", "credential 2 of a"),
        ("CREDENTIAL", "a/2/b/c", "credential 2 of a, at b/c"),
        ("CREDENTIAL", "a/0", "a credential of a that is no longer configured"),
    ],
)
def test_the_target_of_a_cooldown_has_words(scope: str, target: str, words: str) -> None:
    assert subject_of(scope, target) == words


def _provider(*cooldowns: tuple[str, str, datetime], readable: int = 1) -> ProviderView:
    views = [CooldownView(scope, target, NOW, until, "TIMEOUT", 1, "") for scope, target, until in cooldowns]
    return ProviderView("a", 1, readable, tuple(views))


@pytest.mark.parametrize(
    ("provider", "of_model", "of_provider"),
    [
        (_provider(), "can be called", "can be called"),
        (_provider(("MODEL", "a/1", LATER)), "cooling down", "partly cooling down"),
        (_provider(("MODEL", "a/2", LATER)), "can be called", "partly cooling down"),
        (_provider(("MODEL", "a/1", NOW)), "can be called", "can be called"),
        (_provider(("PROVIDER", "a", LATER)), "cooling down", "cooling down"),
        (_provider(readable=0), "no credential", "no credential"),
    ],
)
def test_a_model_and_its_provider_have_states(
    provider: ProviderView, of_model: str, of_provider: str
) -> None:
    assert model_state("a/1", [provider], NOW).word == of_model
    assert provider.state(NOW).word == of_provider


def test_the_cooldown_of_a_credential_that_is_not_configured_cannot_be_ended() -> None:
    (gone, kept) = _provider(("CREDENTIAL", "a/0", LATER), ("CREDENTIAL", "a/10/m", LATER)).cooldowns
    assert not gone.is_configured
    assert kept.is_configured


def test_names_are_separated_by_commas_and_spaces() -> None:
    assert names_in(" a/1,b/2  a/1,, c ") == ("a/1", "b/2", "c")
