"""The file by which a mesh on one machine signs a person in."""

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from spawnmesh_console.clients.sign_in_file import offer_token, take_token


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sign-in.json"


def test_the_code_gives_the_token_once(file: Path) -> None:
    code = offer_token(file, "token")
    assert take_token(file, f"{code}x") is None
    assert take_token(file, code) == "token"
    assert take_token(file, code) is None
    assert list(file.parent.iterdir()) == []


def test_the_file_is_for_its_owner_and_has_no_code(file: Path) -> None:
    code = offer_token(file, "token")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert code not in file.read_text()
    assert len(code) >= 32


def test_an_offer_replaces_a_file_and_a_link_and_leaves_their_contents(file: Path) -> None:
    """A file that stood there keeps its mode and can be open elsewhere, and a link leads away."""
    other = file.with_name("other")
    other.write_text("theirs")
    for begin in (lambda: file.write_text("old"), lambda: file.symlink_to(other)):
        file.unlink(missing_ok=True)
        begin()
        file.chmod(0o644)
        code = offer_token(file, "token")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert not file.is_symlink()
        assert other.read_text() == "theirs"
        assert take_token(file, code) == "token"


def test_one_of_many_callers_gets_the_token(file: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        for _ in range(50):
            code = offer_token(file, "token")
            taken = list(threads.map(lambda _, code=code: take_token(file, code), range(8)))
            assert sorted(map(str, taken)) == ["None"] * 7 + ["token"]
    assert list(file.parent.iterdir()) == []


def test_a_newer_offer_during_a_use_stays_usable(file: Path) -> None:
    """Either use gets its token, or none; the newest link is never lost."""
    with ThreadPoolExecutor(2) as threads:
        for _ in range(200):
            older = offer_token(file, "older")
            use = threads.submit(take_token, file, older)
            newer = offer_token(file, "newer")
            assert use.result() in ("older", None)
            assert take_token(file, newer) == "newer"


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", "1", '{"code_sha256": null}', "\xff\xfe"])
def test_a_broken_file_gives_nothing(content: str, file: Path) -> None:
    file.write_text(content, encoding="latin-1")
    assert take_token(file, "code") is None
    assert file.exists()


def test_a_strange_digest_gives_nothing(file: Path) -> None:
    for digest in ("", "é", None, 7, ["a"]):
        file.write_text(json.dumps({"code_sha256": digest, "token": "token"}))
        assert take_token(file, "code") is None


def test_without_a_file_there_is_nothing(file: Path) -> None:
    assert take_token(file, "code") is None
    assert take_token(file.parent, "code") is None
