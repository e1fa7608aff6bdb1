"""The sealed cookie of a sign-in at an identity provider: what opens it, and for how long."""

import json
import time

import pytest
from cryptography.fernet import Fernet, MultiFernet
from spawnmesh_console.web.attempt_cookie import AttemptCookie, new_attempt
from starlette.responses import Response

KEY = Fernet.generate_key()
COOKIE = AttemptCookie(MultiFernet([Fernet(KEY)]), is_https=False)


def kept(target: str) -> str:
    """Return the value of the cookie of a new attempt."""
    response = Response()
    COOKIE.keep(response, new_attempt(target))
    value = response.headers["set-cookie"].partition(";")[0].partition("=")[2]
    assert len(value) < 4000
    return value


def sealed(content: object, *, seconds_ago: int = 0) -> str:
    return Fernet(KEY).encrypt_at_time(json.dumps(content).encode(), int(time.time()) - seconds_ago).decode()


def test_attempt_is_what_it_was() -> None:
    attempt = COOKIE.attempt_in({COOKIE.name: kept("/sessions?label=a b")})
    assert attempt is not None
    assert attempt.target == "/sessions?label=a b"
    assert len({attempt.state, attempt.nonce, attempt.code_verifier}) == 3
    assert repr(attempt) == "SignInAttempt(target='/sessions?label=a b')"


def test_long_path_is_not_kept() -> None:
    attempt = COOKIE.attempt_in({COOKIE.name: kept("/" + "é" * 3000)})
    assert attempt is not None
    assert attempt.target == "/"


@pytest.mark.parametrize(("seconds_ago", "is_open"), [(0, True), (590, True), (615, False)])
def test_attempt_ends_after_ten_minutes(seconds_ago: int, is_open: bool) -> None:
    content = ["sign-in attempt", "state", "nonce", "verifier", "/"]
    found = COOKIE.attempt_in({COOKIE.name: sealed(content, seconds_ago=seconds_ago)})
    assert (found is not None) is is_open


@pytest.mark.parametrize(
    "value",
    [
        "",
        "é",
        "gAAAA",
        sealed(["token", "form key"]),
        sealed(["another purpose", "state", "nonce", "verifier", "/"]),
        sealed(["sign-in attempt", "state", "nonce", "verifier"]),
        sealed({"sign-in attempt": 1}),
        sealed(7),
        Fernet(Fernet.generate_key()).encrypt(b'["sign-in attempt", "s", "n", "v", "/"]').decode(),
    ],
    ids=[
        "empty", "no ASCII", "cut", "another list", "another purpose", "too short", "an object", "a number",
        "another key",
    ],
)  # fmt: skip
def test_other_values_are_no_attempt(value: str) -> None:
    assert COOKIE.attempt_in({COOKIE.name: value}) is None
    assert COOKIE.attempt_in({}) is None
