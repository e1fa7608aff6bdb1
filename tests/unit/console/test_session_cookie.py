"""The sealed cookie of a person: its attributes, and what opens it."""

import time
from http.cookies import SimpleCookie
from pathlib import Path

import jwt
import pytest
from cryptography.fernet import Fernet, MultiFernet
from spawnmesh_console.web.attempt_cookie import AttemptCookie, new_attempt
from spawnmesh_console.web.people import TokenUnreadable
from spawnmesh_console.web.session_cookie import SessionCookie, cookie_keys
from starlette.responses import Response

SECRET = "a key of thirty-two bytes or more"


def token(seconds: float = 600, **claims: object) -> str:
    return jwt.encode({"exp": time.time() + seconds, "tenant": "acme", **claims}, SECRET)


def keys(*several: bytes) -> MultiFernet:
    return MultiFernet([Fernet(one) for one in several or (Fernet.generate_key(),)])


def kept(response: Response) -> dict[str, str]:
    """Return the cookies that a browser has after the response."""
    found = [SimpleCookie(value.decode()) for name, value in response.raw_headers if name == b"set-cookie"]
    pairs = [(name, one) for jar in found for name, one in jar.items()]
    return {name: one.value for name, one in pairs if one["max-age"] not in ("0", 0)}


def signed_in(cookie: SessionCookie, one: str) -> dict[str, str]:
    response = Response()
    cookie.sign_in(response, one)
    return kept(response)


def test_with_https_no_other_host_can_set_or_read_the_cookie() -> None:
    cookie = SessionCookie(keys(), is_https=True, port=443)
    response = Response()
    cookie.sign_in(response, token())
    cookie.sign_out(response)
    headers = [value.decode().lower() for name, value in response.raw_headers if name == b"set-cookie"]
    assert len(headers) > 2
    for header in headers:
        assert header.startswith("__host-spawnmesh")
        attributes = {part.strip() for part in header.split(";")[1:]}
        assert {"secure", "httponly", "path=/", "samesite=lax"} <= attributes
        assert not [one for one in attributes if one.startswith("domain")]


def test_without_https_the_name_has_the_port() -> None:
    names = {SessionCookie(keys(), is_https=False, port=port).name for port in (8700, 8701)}
    assert names == {"spawnmesh_console_8700", "spawnmesh_console_8701"}


def test_the_cookie_ends_with_the_token_and_hides_it() -> None:
    cookie = SessionCookie(keys(), is_https=False)
    response = Response()
    one = token(600)
    cookie.sign_in(response, one)
    header = next(value.decode() for name, value in response.raw_headers if name == b"set-cookie")
    assert 590 <= int(header.partition("Max-Age=")[2].partition(";")[0]) <= 600
    assert one.split(".")[1] not in header


def test_each_sign_in_has_a_form_key_of_its_own() -> None:
    cookie = SessionCookie(keys(), is_https=False)
    people = [cookie.person_in(signed_in(cookie, token())) for _ in range(2)]
    assert len({person.form_key for person in people if person is not None}) == 2


def test_replicas_with_the_same_keys_open_each_others_cookies() -> None:
    shared = Fernet.generate_key()
    one, other = (SessionCookie(keys(shared), is_https=True) for _ in range(2))
    person = other.person_in(signed_in(one, token(sub="ada")))
    assert person is not None
    assert person.subject == "ada"


def test_keys_can_be_rotated_without_signing_people_out() -> None:
    old, new = Fernet.generate_key(), Fernet.generate_key()
    before, during, after = (
        SessionCookie(keys(*several), is_https=True) for several in ((old,), (new, old), (new,))
    )
    first = signed_in(before, token())
    assert during.person_in(first) is not None
    assert after.person_in(first) is None
    assert after.person_in(signed_in(during, token())) is not None


def test_a_cookie_that_was_changed_opens_nothing() -> None:
    cookie = SessionCookie(keys(), is_https=False)
    for claims in ({}, {"groups": ["g" * 40] * 100}):
        jar = signed_in(cookie, token(**claims))
        assert cookie.person_in(jar) is not None
        for name in jar:
            value = jar[name]
            for changed in (value[:-5], value[1:], f"A{value}", value.swapcase(), ""):
                assert cookie.person_in({**jar, name: changed}) is None
        assert cookie.person_in({}) is None
    for strange in ("é", "\0", "2.", "3.", "1.x", "9" * 50 + ".x", ".", "-1.x", "\ud800"):
        assert cookie.person_in({cookie.name: strange}) is None


def test_a_shorter_token_leaves_no_piece_of_a_longer_one() -> None:
    cookie = SessionCookie(keys(), is_https=False)
    browser = signed_in(cookie, token(groups=["g" * 40] * 100))
    assert len(browser) > 1
    response = Response()
    cookie.sign_in(response, token())
    deleted = {
        value.decode().partition("=")[0]
        for name, value in response.raw_headers
        if name == b"set-cookie" and b"Max-Age=0" in value
    }
    assert {**browser, **kept(response)}.keys() - deleted == {cookie.name}


def test_a_token_that_ended_since_signs_no_one_in() -> None:
    shared = Fernet.generate_key()
    cookie = SessionCookie(keys(shared), is_https=False)
    ended = keys(shared).encrypt(f'["{token(-1)}", "key"]'.encode()).decode()
    assert cookie.person_in({cookie.name: ended}) is None
    with pytest.raises(TokenUnreadable, match="has expired"):
        cookie.sign_in(Response(), token(-1))


def test_sealed_texts_that_are_no_person_open_nothing() -> None:
    shared = Fernet.generate_key()
    cookie = SessionCookie(keys(shared), is_https=False)
    for text in (
        "",
        "{}",
        "[]",
        "null",
        "7",
        '["a"]',
        '["a", "b"]',
        '["a", "b", "c"]',
        '[null, "b"]',
        "[1, 2]",
        '"ab"',
    ):
        sealed = keys(shared).encrypt(text.encode()).decode()
        assert cookie.person_in({cookie.name: sealed}) is None, text


def test_an_attempt_to_sign_in_is_no_sign_in() -> None:
    shared = Fernet.generate_key()
    people = SessionCookie(keys(shared), is_https=True)
    attempts = AttemptCookie(keys(shared), is_https=True)
    response = Response()
    attempts.keep(response, new_attempt("/sessions"))
    (sealed,) = kept(response).values()
    assert people.person_in({people.name: sealed}) is None
    (person,) = signed_in(people, token()).values()
    assert attempts.attempt_in({attempts.name: person}) is None


def test_a_file_of_keys_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    several = [Fernet.generate_key() for _ in range(2)]
    file.write_bytes(b"\n".join(several) + b"\n")
    sealed = Fernet(several[1]).encrypt(b"x")
    assert cookie_keys(file).decrypt(sealed) == b"x"
    for content in (b"", b"short", b"\xff\xfe", several[0][:-1]):
        file.write_bytes(content)
        with pytest.raises(SystemExit, match="CONSOLE_COOKIE_KEY_FILE"):
            cookie_keys(file)
    with pytest.raises(SystemExit, match="CONSOLE_COOKIE_KEY_FILE"):
        cookie_keys(tmp_path / "nothing")
    assert cookie_keys(None).encrypt(b"x")
